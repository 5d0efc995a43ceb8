// Finds the values through which a gradient flows.
#pragma once
#include <unordered_set>
#include <vector>

#include "passes/graph/memory.h"
#include "passes/graph/model.h"

namespace pipewright {

class GradientFlow {
 public:
  using Values = std::unordered_set<const torch::jit::Value*>;

  explicit GradientFlow(const Model& model);

  // Returns floating-point and complex tensors that depend on a trainable parameter through
  // differentiable operations outside torch.no_grad(). May include a value that autograd treats as
  // constant, but never omits one that has a gradient.
  const Values& values() const { return with_; }

  // Returns the subset of values() that a gradient of `output` reaches through `nodes`, which are
  // in order of execution. May include too many, but omits none.
  Values ReachedFrom(const torch::jit::Value* output, const std::vector<torch::jit::Node*>& nodes);

 private:
  Memory memory_;
  Values with_;
  std::unordered_set<const torch::jit::Node*> through_;  // nodes that a gradient may pass through
  // For nodes that run while gradients are off, holds the operands that they may return.
  std::unordered_map<const torch::jit::Node*, Values> same_;
};

std::unordered_set<const torch::jit::Value*> ValuesWithGradient(const Model& model);

// Returns true if LibTorch has no derivative of the operator, so that a backward through it fails
// ("derivative for aten::heaviside is not implemented"). Returns false if it has a derivative that
// fails only for some arguments.
bool HasNoDerivative(const c10::FunctionSchema& schema);

}  // namespace pipewright
