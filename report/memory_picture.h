// Draws what each rank holds in memory over one step.
#pragma once
#include <string>

#include "plan/plan.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// A row a rank: the simulator's account over the first step of a plan, weights in a darker colour,
// against `limit` bytes (0: none). All rows have one scale.
std::string MemorySvg(const Plan& plan, const Costs& costs, double limit);

}  // namespace pipewright
