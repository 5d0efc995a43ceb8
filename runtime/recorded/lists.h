// Makes the lists of a module from a trace.
#pragma once
#include <string>

#include "runtime/recorded/recording.h"

namespace pipewright {

// Fills the four lists of `graph`, whose operands are the trace's. Leaves out results that nothing
// reads and what I or W need not compute. Kernels with an output mask run in both, each time for
// one side, except those of normalizations, which compute everything in I and keep the small
// gradients for W.
void MakeLists(const Recording& trace, RecordedGraph& graph);

}  // namespace pipewright
