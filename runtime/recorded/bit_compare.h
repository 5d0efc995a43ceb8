// Records the lists of a module and compares them with autograd's body.
#pragma once
#include <string>
#include <vector>

#include "runtime/recorded/body.h"

namespace pipewright {

// Runs the module forward and backward on `inputs`, with made-up gradients of the known geometry,
// and fills body.graph. Buffers are the same afterwards. Returns why there can be no lists, or "".
std::string Record(const LoadedModule& module, RecordedBody& body,
                   const std::vector<c10::IValue>& inputs);

// Runs both bodies on `inputs`: outputs, gradients by B and by I and W, and buffers must have the
// same bits and the same layout in memory. Returns the first difference, or "". Times F and B of
// both.
std::string CompareBodies(const LoadedModule& module, const std::shared_ptr<RecordedBody>& body,
                          const std::vector<c10::IValue>& inputs);

// Returns the first operation of the lists that returns or writes other bits than in autograd's
// body, with its place in the module's code if known; "" if there is none. Slow.
std::string FirstOther(const LoadedModule& module, const RecordedBody& body,
                       const std::vector<c10::IValue>& inputs, const Tensors& gradients);

// Returns true if autograd's body gives the same bits in several runs. With several threads some
// kernels do not (index_put on repeated indices). Slow.
bool IsReproducible(const LoadedModule& module, const RecordedBody& body,
                    const std::vector<c10::IValue>& inputs, const Tensors& gradients);

// Returns which tensor of `a` first differs from that of `b` in a bit or, if `in_memory`, in its
// layout; "" if none does.
std::string Difference(const Tensors& a, const Tensors& b, const std::string& what,
                       bool in_memory = true);

// Returns the tensors among `values`.
Tensors TensorsAmong(const std::vector<c10::IValue>& values);

}  // namespace pipewright
