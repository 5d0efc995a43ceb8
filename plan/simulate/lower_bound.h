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

// Returns the bounds. `memory` is the limit per rank in bytes, including weights. The plan runs
// `steps` times in a row. `recompute` is by stage; empty: as in the plan. Uses only the computes of
// each rank and the edges from the plan's transfers; without transfers the stages form a chain.
LowerBound BoundOf(const Plan& plan, const Costs& costs, double memory = kNoLimit, int steps = 1,
                   const std::vector<char>& recompute = {});

}  // namespace pipewright
