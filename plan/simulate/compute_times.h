// Computes when each compute of a schedule ends if transfers take no time, which gives a global
// order of all computes.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Returns [rank][position] -> end, if F, I and W take 1, B takes 2 and a pair takes 3. Ends
// strictly ascend along a rank and along every dependency, so (end, rank) orders all computes. The
// plan must have computes only. Throws Error naming who waits for whom if the order deadlocks.
std::vector<std::vector<int64_t>> UnitEnds(const Plan& schedule, const StageGraph& graph);

}  // namespace pipewright
