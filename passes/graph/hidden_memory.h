// Finds results that share their operand's memory behind autograd's back.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <vector>

#include "passes/graph/memory.h"

namespace pipewright {

// Returns true for operators whose result is no view to autograd and lies in the operand's memory:
// a write to it changes what other operations saved for their backward, and raises no error.
bool HidesMemory(const torch::jit::Node* node);

// Returns true if what is written lies in such a result, or in a view of one. A value that comes
// from a branch or a list counts if `nodes` have such a result in the memory that is written.
bool IsBehindAutograd(const Write& write, const std::vector<torch::jit::Node*>& nodes,
                      Memory& memory);

}  // namespace pipewright
