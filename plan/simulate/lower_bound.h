// Lower bounds on makespan and span that hold for every order of a plan's actions, given its
// stages, placement, counts and costs, with I and W free to be apart, and under a memory limit per
// rank. The derivation is in docs/internals/searches.md.
#pragma once
#include <limits>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"

namespace pipewright {

struct LowerBound {
  double makespan = 0, span = 0;
};

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// `memory` is the limit per rank in bytes, including weights. `steps` is how often the plan runs in
// a row. `recompute` is by stage; empty: as in the plan. Only the computes of each rank matter and,
// if the plan has transfers, which stages they connect; otherwise the stages form a chain.
LowerBound BoundOf(const Plan& plan, const Costs& costs, double memory = kNoLimit, int steps = 1,
                   const std::vector<char>& recompute = {});

}  // namespace pipewright
