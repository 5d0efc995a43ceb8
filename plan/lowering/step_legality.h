// Checks when gradients are summed and weights change.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Checks the rules order and step for REDUCE_GRAD, STEP, LOAD and EVICT, and the rule version; see
// plan/lowering/validate.h. A plan without any REDUCE_GRAD and STEP is one step that something else
// ends.
void CheckSteps(const Plan& plan, const StageGraph& graph);

// Checks a schedule of computes alone, whose steps end where Lower ends them.
void CheckScheduleSteps(const Plan& schedule, const StageGraph& graph);

// Returns after how many of the rank's computes each step ends: after its last backward there.
std::vector<int> StepEnds(const Plan& schedule, int rank);

}  // namespace pipewright
