// Finds values that a scripted model does not set on every path.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

namespace pipewright {

// Returns true if a branch may leave the value unset: the model returns early there, and nothing
// reads the value.
bool MayBeUnset(const torch::jit::Value* value);

}  // namespace pipewright
