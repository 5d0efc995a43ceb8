// `pipewright plan --schedule zb-auto`: reads the costs, searches, reports on standard error.
#pragma once
#include <string>

#include "plan/lower_bound.h"
#include "plan/plan.h"

namespace pipewright {

struct ZbRequest {
  int ranks = 0, microbatches = 0;
  std::string stages;     // a number, "auto", or empty: as many as ranks, or as in the placement
  std::string placement;  // empty: zb-auto chooses
  std::string costs, costs_out;
  double memory = kNoLimit;
  bool forward_only = false;
};

// The schedule, without transfers. Throws Error and UsageError.
Plan PlanZbAuto(const ZbRequest& request);

}  // namespace pipewright
