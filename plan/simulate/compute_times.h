// Computes when each compute of a schedule ends if transfers take no time, which gives a global
// order of all computes.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// [rank][position] -> end, with F, I and W costing 1, B 2 and a pair 3. Strictly ascending along a
// rank and along every dependency, so (end, rank) orders all computes. The plan holds computes
// only. Throws Error naming who waits for whom when the order can never finish.
std::vector<std::vector<int64_t>> UnitEnds(const Plan& schedule, const StageGraph& graph);

}  // namespace pipewright
