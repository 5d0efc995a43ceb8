// The simulator fed with what each action of a run took, instead of one time for all of a kind:
// what then differs from the run is what the simulator does not know of.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/trace.h"

namespace pipewright {

// For SimulateOptions::duration: step s of the simulation takes the times of the s-th step of
// `measured`, and begins again where that has no more. A STEP that was not measured takes no time.
// The function throws Error naming `path` for any other action that the trace has not, and this one
// where a step of the trace has an action twice.
std::function<double(int rank, int step, const Action& action)> DurationsOf(
    const std::vector<TraceAction>& measured, const std::string& path);

int StepsOf(const std::vector<TraceAction>& measured);

}  // namespace pipewright
