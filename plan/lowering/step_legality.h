// Checks the order of gradient sums and weight updates.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Checks the rules order and step for REDUCE_GRAD, STEP, LOAD and EVICT, and the rule version; see
// plan/lowering/validate.h. A plan without any REDUCE_GRAD and STEP is one step whose end is not
// part of the plan.
void CheckSteps(const Plan& plan, const StageGraph& graph);

// Checks a schedule, which has computes only and whose steps end where Lower ends them.
void CheckScheduleSteps(const Plan& schedule, const StageGraph& graph);

// Returns, for each step, the number of the rank's computes up to the step's end, which follows its
// last backward on that rank.
std::vector<int> StepEnds(const Plan& schedule, int rank);

}  // namespace pipewright
