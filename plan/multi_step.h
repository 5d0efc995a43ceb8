// Several optimizer steps in a row.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// A plan or schedule of any number of steps: the prologue, then the body once a step, then the
// epilogue. Microbatches and weight versions are those of the plan in which the body comes once;
// each further repetition raises those of the body, and of the epilogue, by one step's. A body may
// run ahead into the next steps. Receive buffers have no numbers.
struct StepLoop {
  Plan prologue, body, epilogue;  // body.microbatches: of one step; body.stages
};

// One step after the other. Nothing but the weights ties a step to the next: a rank goes on as soon
// as its own stages have stepped.
StepLoop Synchronous(const Plan& schedule);

// PipeDream's 1F1B (Narayanan et al., SOSP 2019) on a plain pipeline: the warm-up is the prologue,
// the body forwards into the next steps while it backwards its own. Weights: see SetVersions.
StepLoop AsynchronousOneForwardOneBackward(int ranks, int microbatches);

// Returns the steps that a loop makes besides its bodies: those whose STEP is in prologue or
// epilogue.
int StepsAround(const StepLoop& loop);

// Indices and `steps` as in a Plan of so many steps; forwards of steps beyond are left out; receive
// buffers are numbered (plan/receive_buffers.h). Throws Error when there are fewer than StepsAround.
Plan Unroll(const StepLoop& loop, int steps);

// The loop that makes `plan`, a lowered plan of several steps: the steps that repeat become its
// body. Throws Error when no two steps in a row are alike.
StepLoop Fold(const Plan& plan);

// Writes into a lowered plan of several steps which version of its stage's weights each compute
// uses (version n: after n steps): weight stashing, the newest there is at the forward, or, with
// `delay` d >= 0, that of d steps before (PipeDream-2BW: 1). Backwards use the version of their
// forward.
void SetVersions(Plan& plan, int delay = -1);

}  // namespace pipewright
