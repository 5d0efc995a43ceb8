// Searches all partitions on all choices of devices, for links that differ by pair.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/partition/problem/units.h"

namespace pipewright {

// Searches every partition on every choice of devices, with one replica per stage, that may have a
// smaller objective than `known`, and replaces `known` by the best. No stage holds exactly the
// nodes `forbidden` (sorted; empty: no limit). Returns false if that takes more than `evaluations`.
bool SearchPairLinks(const PartitionProblem& problem, const UnitGraph& graph,
                     const std::vector<int>& forbidden, int64_t evaluations,
                     PartitionResult& known);

}  // namespace pipewright
