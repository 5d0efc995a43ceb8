// Sorts the graph in the order in which modules run.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

// Sorts the top-level nodes by module and keeps the order within each. Every value must flow to its
// own module or a later one. Throws Error if this would move an in-place operation past another use
// of its memory.
void SortByModule(Model& model, const ModuleAssignment& assignment);

}  // namespace pipewright
