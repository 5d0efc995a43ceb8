// Every partition on every choice of devices, where links differ by pair.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/partition/problem/units.h"

namespace pipewright {

// Looks at every partition on every choice of devices, one replica a stage, whose stages' loads may
// stay under that of `known`, and replaces it with the best. No stage holds exactly the nodes
// `forbidden` (sorted; empty: no such). False: there were more than `evaluations`.
bool SearchPairLinks(const PartitionProblem& problem, const UnitGraph& graph,
                     const std::vector<int>& forbidden, int64_t evaluations,
                     PartitionResult& known);

}  // namespace pipewright
