// From a trace to the lists of a module.
#pragma once
#include <string>

#include "runtime/recorded/recording.h"

namespace pipewright {

// Fills the four lists of `graph`, whose operands are the trace's. Leaves out what nobody reads and
// what I and W need not compute; kernels with an output mask run in both, each time for one side,
// but those of normalisations: they compute all in I, and the small gradients wait for W.
void MakeLists(const Recording& trace, RecordedGraph& graph);

}  // namespace pipewright
