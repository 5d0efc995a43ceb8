// Finds what limits a candidate, and predicts what would make it faster.
#pragma once
#include <string>
#include <vector>

#include "plan/simulate/trace.h"
#include "plan/tune/problem.h"

namespace pipewright {

// Returns what binds: "compute" if the busiest rank hardly waits, "links" if free links would make
// the step clearly shorter, "disk" if a free disk would, "memory" if stages recompute, and
// otherwise "order": ranks wait for each other.
std::string WhatBinds(const TuneProblem& problem, const TuneCandidate& candidate);

struct TuneHelp {
  std::string change;  // "links twice as fast"
  double step = 0;     // predicted seconds with it
};

// Returns the predicted effect of links and of a disk twice as fast, of a finer cut around the
// slowest module (into two equal halves) and, under a limit, of memory without one. The best step
// comes first. `best`: the shortest predicted step of the search.
std::vector<TuneHelp> WhatHelps(const TuneProblem& problem, const TuneCandidate& candidate,
                                double best);

// Returns the problem with a module, and its part of every profile, cut into two equal halves.
TuneProblem CutModule(const TuneProblem& problem, int module);

// Returns the predicted actions of each rank, in microseconds; none if they are too many to draw.
std::vector<TraceAction> TimelineOf(const TuneProblem& problem, const TuneCandidate& candidate);

}  // namespace pipewright
