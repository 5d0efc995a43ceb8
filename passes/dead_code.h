// Removes operations that affect no result.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

namespace pipewright {

// Removes nodes without uses and effects, also in branches and loops. An in-place write stays if
// its memory may be an input's or is read later. LibTorch's own pass trusts the schemas here and
// removes writes that are seen through undeclared views.
void RemoveDeadCode(torch::jit::Graph& graph);

}  // namespace pipewright
