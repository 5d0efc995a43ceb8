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

}  // namespace pipewright
