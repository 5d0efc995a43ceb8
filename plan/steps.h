// Several optimizer steps in a row.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// A schedule (compute actions only) of any number of steps: the prologue, then the body once a
// step, then the epilogue. Microbatch i of the body's k-th repetition is k * microbatches + i; a
// body that runs ahead has indices of `microbatches` and more, and the epilogue counts on from the
// last step.
struct StepLoop {
  Plan prologue, body, epilogue;
};

// One step after the other. Nothing but the weights ties a step to the next: a rank goes on as soon
// as its own stages have stepped.
StepLoop Synchronous(const Plan& schedule);

// PipeDream's 1F1B (Narayanan et al., SOSP 2019) on a plain pipeline: the warm-up is the prologue,
// the body forwards into the next steps while it backwards its own. Weights: see SetVersions.
StepLoop AsynchronousOneForwardOneBackward(int ranks, int microbatches);

// Indices and `steps` as in a Plan of so many steps; forwards of steps beyond are left out.
Plan Unroll(const StepLoop& loop, int steps);

// Writes into a lowered plan of several steps which version of its stage's weights each compute
// uses (version n: after n steps): weight stashing, the newest there is at the forward, or, with
// `delay` d >= 0, that of d steps before (PipeDream-2BW: 1). Backwards use the version of their
// forward.
void SetVersions(Plan& plan, int delay = -1);

}  // namespace pipewright
