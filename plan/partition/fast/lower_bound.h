// Computes a lower bound on the objective.
#pragma once
#include "plan/partition/problem/units.h"

namespace pipewright {

// Returns a lower bound for all partitions: the maximum of the work shared evenly, with the least
// transfers for that number of stages, and the slowest unit on its best device. Infinite if total
// memory does not suffice. `fewer`: the bound also holds for fewer stages than the problem's.
double PartitionLowerBound(const PartitionProblem& problem, const UnitGraph& graph,
                           bool fewer = false);

}  // namespace pipewright
