// Removal of operations that change no result.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

namespace pipewright {

// Removes what has no use and no effect, in branches and loops too. A write in place stays where
// the memory may be an input's or is read afterwards; LibTorch's own pass trusts schemas in that,
// and takes writes away that are seen through views which no schema declares.
void RemoveDeadCode(torch::jit::Graph& graph);

}  // namespace pipewright
