// Removes operations that affect no result.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

namespace pipewright {

// Removes nodes without uses or side effects, also inside branches and loops. Keeps an in-place
// write if its memory may belong to an input or is read later. LibTorch's own pass relies on the
// schemas here and removes writes that are visible only through undeclared views.
void RemoveDeadCode(torch::jit::Graph& graph);

}  // namespace pipewright
