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
// same bits, and lie in memory alike. Returns what has not, or "". Times F and B of both.
std::string Compare(const LoadedModule& module, const std::shared_ptr<RecordedBody>& body,
                    const std::vector<c10::IValue>& inputs);

// The first operation of the lists that gives or writes other bits than it does in autograd's body,
// with the place in the module's code where that is known; "": none. Slow.
std::string FirstOther(const LoadedModule& module, const RecordedBody& body,
                       const std::vector<c10::IValue>& inputs, const Tensors& gradients);

// Returns whether autograd's body gives the same bits each of several times. With several threads
// some kernels do not (index_put on repeated indices). Slow.
bool IsReproducible(const LoadedModule& module, const RecordedBody& body,
                    const std::vector<c10::IValue>& inputs, const Tensors& gradients);

// The first that differs of each two tensors in a bit, or, `in_memory`, in how it lies there; or "".
std::string Difference(const Tensors& a, const Tensors& b, const std::string& what,
                       bool in_memory = true);

// The tensors among outputs.
Tensors TensorsAmong(const std::vector<c10::IValue>& values);

}  // namespace pipewright
