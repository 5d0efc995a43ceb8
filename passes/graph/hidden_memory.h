// Finds results that share their operand's memory behind autograd's back.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <vector>

#include "passes/graph/memory.h"

namespace pipewright {

// Returns true for operators whose result shares the operand's memory although autograd does not
// treat it as a view: a write to it changes what other operations saved for their backward, without
// an error.
bool HidesMemory(const torch::jit::Node* node);

// Returns true if `write` modifies such a result, or a view of one. If the written value comes from
// a branch or a list, returns true if any of `nodes` has such a result in the written memory.
bool IsBehindAutograd(const Write& write, const std::vector<torch::jit::Node*>& nodes,
                      Memory& memory);

}  // namespace pipewright
