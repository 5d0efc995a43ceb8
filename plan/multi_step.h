// Makes plans of several consecutive optimizer steps.
#pragma once
#include "plan/plan.h"

namespace pipewright {

// A plan or schedule of any number of steps: the prologue, then the body once per step, then the
// epilogue. Microbatches and weight versions are numbered for one repetition of the body; each
// further repetition adds a step's worth to the numbers of the body and the epilogue. A body may
// run ahead into the next steps. Receive buffers are not numbered.
struct StepLoop {
  Plan prologue, body, epilogue;  // body.microbatches: of one step; body.stages
};

// Repeats a step. Only the weights connect one step to the next: a rank continues as soon as its
// own stages have stepped.
StepLoop Synchronous(const Plan& schedule);

// Makes PipeDream's 1F1B (Narayanan et al., SOSP 2019) on a plain pipeline: the warm-up is the
// prologue, and the body runs forwards of the next steps between the backwards of its own. For the
// weights, see SetVersions.
StepLoop AsynchronousOneForwardOneBackward(int ranks, int microbatches);

// Returns the number of steps that end in the prologue or the epilogue.
int StepsAround(const StepLoop& loop);

// Unrolls a loop to `steps` steps. Leaves out forwards of later steps and numbers the receive
// buffers (plan/receive_buffers.h). Throws Error if `steps` is less than StepsAround.
Plan Unroll(const StepLoop& loop, int steps);

// Returns the loop that unrolls to `plan`, a lowered plan of several steps: the steps that repeat
// become its body. Throws Error if no two consecutive steps are alike.
StepLoop Fold(const Plan& plan);

// Sets in a lowered plan of several steps which version of its stage's weights each compute uses
// (version n: after n steps). Weight stashing takes the newest version at the time of the forward;
// `delay` d >= 0 takes the version d steps back (PipeDream-2BW: 1). A backward uses the version of
// its forward.
void SetVersions(Plan& plan, int delay = -1);

}  // namespace pipewright
