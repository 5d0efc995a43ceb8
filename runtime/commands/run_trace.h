// Collects what each rank did, and when, for a trace file.
#pragma once
#include <vector>

#include "base/json.h"
#include "plan/plan.h"
#include "plan/simulate/trace.h"
#include "runtime/exec/executor.h"

namespace pipewright {

// Adds a rank's events of one run of its list; times are microseconds since `origin`.
void AddEvents(const std::vector<TraceEvent>& events, int step, double origin,
               std::vector<TimedAction>& out);

// WriteEvents returns one rank's events as JSON; ReadEvents makes a trace from those of all ranks.
Json WriteEvents(const std::vector<TimedAction>& events);
ActionTrace ReadEvents(const std::vector<Json>& ranks);

}  // namespace pipewright
