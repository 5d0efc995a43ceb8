// A module as lists of operations: F, its forward; B, its backward; I and W, the two halves of B.
// They are recorded from one real forward and backward (recording.h) and run without autograd
// (replay.h). They hold for inputs and gradients of the recorded geometry.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace pipewright {

struct Geometry {
  std::vector<int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;
  c10::DispatchKeySet keys;  // the device, and whether reads conjugate or negate the elements
  bool number = false;       // a tensor of no dimension that stands for a Python number

  static Geometry Of(const at::Tensor& tensor);
  bool Fits(const at::Tensor& tensor) const;
};

// An operand of an operation: a slot, a weight of the module (the tensor that it is when the list
// runs), a constant, a list of operands, or a generator.
struct Operand {
  enum class Kind { kConstant, kSlot, kWeight, kList, kGenerator } kind = Kind::kConstant;
  int index = -1;              // slot; weight; id of a generator
  c10::IValue constant;        // kList: an empty list of its type
  std::vector<Operand> items;  // kList
};

struct Instruction {
  enum class Kind { kCall, kView, kUnary, kBinary, kScaledSum, kAddmm } kind = Kind::kCall;
  c10::OperatorHandle op;
  c10::DispatchKeySet keys;
  std::vector<Operand> operands;  // kView: the tensor whose storage it is
  std::vector<int> results;       // slots; -1: not kept
  std::vector<int> release;       // slots that nothing reads after it
  // kView
  Geometry geometry;
  int64_t offset = 0;  // beyond the operand's

  int number = -1;  // among the calls of the trace
};

using InstructionList = std::vector<Instruction>;

// Slots: inputs, then gradients of the outputs, then what operations compute.
struct RecordedGraph {
  int inputs = 0, slots = 0;
  InstructionList forward, backward, input_grad, weight_grad;
  std::vector<int> forward_release;  // inputs that nothing reads
  std::vector<int> forward_done;     // outputs that backward does not read
  std::vector<int> input_grad_done;  // slots that W does not read
  std::vector<Operand> output;       // by output
  std::vector<bool> gives_gradient;  // by output: whether autograd's has a gradient
  std::vector<Geometry> gradient;    // by output; meaningful where `arrives`
  std::vector<bool> arrives;         // by output: whether a gradient arrives
  std::vector<Operand> input_gradient, weight_gradient;  // constant: undefined
  std::vector<int> written;  // weights that F writes to, as far as schemas say
};

}  // namespace pipewright
