// The graph in the order in which modules run.
#pragma once
#include "passes/split.h"

namespace pipewright {

// Sorts the top-level nodes by module, those of one module in their order. Every value must flow to
// its own module or a later one. Throws Error where that would move an in-place operation past
// another use of what it writes to.
void SortByModule(Model& model, const Assignment& assignment);

}  // namespace pipewright
