// zb-auto searches the best order of F, I and W for given costs and a memory limit per rank.
// docs/internals/searches.md describes the search and its results.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/lower_bound.h"

namespace pipewright {

struct ZbAutoOptions {
  double memory = kNoLimit;  // bytes a rank may hold, weights included, in the costs' units
  StagePlacement placement;       // empty: zb-auto chooses
  bool forward_only = false;
  std::string memory_name = "--memory";  // in errors
  double effort = 1;                     // the length of the search; 1 is a few seconds
};

struct ZbAutoResult {
  Plan plan;  // compute only
  StagePlacement placement;
  std::vector<char> recompute;  // by stage; empty: none
  double makespan = 0, span = 0;
  LowerBound bound;    // for this placement, memory limit and recomputation
  double any_map = 0;  // bound on the span for any placement (AnyMapBound), if none was given
};

// Searches for the best order. `costs` has one entry per stage. The same input gives the same plan.
// Throws Error, with the memory needed, if even one microbatch at a time does not fit.
ZbAutoResult ZbAuto(const Costs& costs, int ranks, int stages, int microbatches,
                    const ZbAutoOptions& options = {});

}  // namespace pipewright
