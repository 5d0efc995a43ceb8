// A topological order that grows stages from one end of the graph.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/partition/problem/units.h"

namespace pipewright {

// A topological order of the units: stages grown one after the other, each from the start (or end)
// that fills it with least transfers, by units that are tied to it most. `most`: device time of
// one. What it took is taken from `steps`; where those are used up, the first start is taken.
std::vector<int> GrownOrder(const UnitGraph& graph, double transfer_latency, double most,
                            bool from_end, int64_t& steps);

}  // namespace pipewright
