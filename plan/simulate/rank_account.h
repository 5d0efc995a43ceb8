// Computes what a rank holds in memory, action by action.
#pragma once
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// The most bytes that a rank holds while an action runs, and the bytes after it.
struct HeldBytes {
  double most = 0, after = 0;
};
struct RankAccount {
  double start = 0;  // weights in memory from the start
  std::vector<HeldBytes> actions;
};
// `recompute`: stages, as in SimulateOptions.
RankAccount BytesOfRank(const Plan& plan, int rank, const Costs& costs,
                        const std::vector<char>& recompute);

}  // namespace pipewright
