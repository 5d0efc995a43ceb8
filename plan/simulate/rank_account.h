// What a rank holds in memory, action by action.
#pragma once
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// What a rank holds while an action runs, at most, and after it.
struct HeldBytes {
  double most = 0, after = 0;
};
struct RankAccount {
  double start = 0;  // weights that are there from the start
  std::vector<HeldBytes> actions;
};
// The account of one rank, action by action. `recompute`: stages, as in SimulateOptions.
RankAccount BytesOfRank(const Plan& plan, int rank, const Costs& costs,
                        const std::vector<char>& recompute);

}  // namespace pipewright
