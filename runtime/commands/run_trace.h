// What the ranks did when, collected for a trace file.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/trace.h"
#include "runtime/exec/executor.h"

namespace pipewright {

// Adds a rank's events of one run of its list; times are microseconds since `origin`.
void AddEvents(const std::vector<TraceEvent>& events, int step, double origin,
               std::vector<TimedAction>& out);

// Returns one rank's events as text, and all ranks' texts as a trace.
std::string PackEvents(const std::vector<TimedAction>& events);
Trace UnpackEvents(const std::vector<std::string>& ranks);

}  // namespace pipewright
