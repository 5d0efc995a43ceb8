// Computes what a rank holds in memory, action by action.
#pragma once
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/trace.h"

namespace pipewright {

// The most bytes that a rank holds while an action runs, and the bytes that it holds afterwards.
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
// Returns the most bytes that a rank holds.
double PeakOfRank(const Plan& plan, int rank, const Costs& costs,
                  const std::vector<char>& recompute);

// A rank holds `bytes` from `time` on, until the next change.
struct MemoryAt {
  double time = 0, bytes = 0;
};
// Returns the memory of a rank over its events in a simulation (ActionTrace::ranks). Actions that
// take no time have no event; they run when the event before them has ended.
std::vector<MemoryAt> MemoryOverTime(const RankAccount& account,
                                     const std::vector<TimedAction>& events);

}  // namespace pipewright
