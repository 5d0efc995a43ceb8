// Draws each rank's memory over one step.
#pragma once
#include <string>

#include "plan/plan.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/trace.h"

namespace pipewright {

// Draws a row for each rank: its simulated memory over the first step of a plan, with weights in a
// darker color, against `limit` bytes (0: none). `trace` is the plan's simulation. All rows have
// the same scale.
std::string MemorySvg(const Plan& plan, const Costs& costs, const ActionTrace& trace, double limit,
                      const std::string& units);

}  // namespace pipewright
