// zb-auto searches the best order of F, I and W for given costs and a memory limit per rank. What
// it does and how far it gets is in docs/internals/searches.md.
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
  double effort = 1;                     // how long to search; 1 is a few seconds
};

struct ZbAutoResult {
  Plan plan;  // compute only
  StagePlacement placement;
  std::vector<char> recompute;  // per stage: whether its forward is run again; empty: none
  double makespan = 0, span = 0;
  LowerBound bound;    // for this placement, this limit, this recompute
  double any_map = 0;  // of the span, whatever the placement (AnyMapBound), where none was given
};

// `costs` are of one stage each. The same input gives the same plan. Throws Error when even one
// microbatch at a time does not fit, with a limit under which it would.
ZbAutoResult ZbAuto(const Costs& costs, int ranks, int stages, int microbatches,
                    const ZbAutoOptions& options = {});

}  // namespace pipewright
