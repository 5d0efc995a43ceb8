// `pipewright plan --schedule zb-auto`: reads the costs, searches for a schedule, and reports to
// stderr.
#pragma once
#include <string>

#include "plan/plan.h"
#include "plan/simulate/lower_bound.h"

namespace pipewright {

struct ZbRequest {
  int ranks = 0, microbatches = 0;
  std::string stages;     // a number, "auto", or "": one per rank, or as in the placement
  std::string placement;  // "": zb-auto chooses
  std::string costs, costs_out;
  double memory = kNoLimit;
  bool forward_only = false;
};

// Returns the schedule without transfers. Throws Error and UsageError.
Plan PlanZbAuto(const ZbRequest& request);

}  // namespace pipewright
