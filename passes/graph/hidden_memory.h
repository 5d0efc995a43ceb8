// Finds results that share their operand's memory behind autograd's back.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

namespace pipewright {

// Returns true for operators whose result is no view to autograd and lies in the operand's memory:
// a write to it changes what other operations saved for their backward, and raises no error.
bool HidesMemory(const torch::jit::Node* node);

// Returns true if the value is such a result, or a view of one.
bool IsBehindAutograd(const torch::jit::Value* value);

}  // namespace pipewright
