// When gradients may be summed and weights changed.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// The rules order and step for REDUCE_GRAD, STEP, LOAD and EVICT, and that of weight versions: see
// plan/validate.h. A plan without any REDUCE_GRAD and STEP is one step whose end is left to others.
void CheckSteps(const Plan& plan, const StageGraph& graph);

}  // namespace pipewright
