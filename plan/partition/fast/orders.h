// Makes topological orders to cut into stages.
#pragma once
#include <vector>

#include "plan/partition/problem/units.h"

namespace pipewright {

// Returns topological orders of the units that tend to have cheap cuts. The first is 0, 1, 2, ...
std::vector<std::vector<int>> CandidateOrders(const UnitGraph& graph);

}  // namespace pipewright
