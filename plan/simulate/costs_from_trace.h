// Feeds the simulator with the measured time of each action of a run, instead of one time per kind.
// The difference that remains is due to what the simulator does not model.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/trace.h"

namespace pipewright {

// Returns a function for SimulateOptions::duration: step s of the simulation takes the times of the
// s-th step of `measured`, and starts over when the trace has no more steps. A STEP that was not
// measured takes no time. The returned function throws Error naming `path` for any other action
// that the trace lacks; this one does if a step of the trace has an action twice.
std::function<double(int rank, int step, const Action& action)> DurationsOf(
    const std::vector<TraceAction>& measured, const std::string& path);

int StepsOf(const std::vector<TraceAction>& measured);

}  // namespace pipewright
