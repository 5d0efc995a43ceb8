// A bound that no partition is better than.
#pragma once
#include "plan/partition/problem/units.h"

namespace pipewright {

// No partition is better than this: the work shared evenly with the least transfers that so many
// stages need, the slowest unit on its best device. Infinite where total memory does not suffice.
// `fewer`: nor is one of fewer stages than the problem's.
double PartitionLowerBound(const PartitionProblem& problem, const UnitGraph& graph,
                           bool fewer = false);

}  // namespace pipewright
