#include "plan/simulate/compute_times.h"

#include "plan/simulate/simulate.h"

namespace pipewright {

std::vector<std::vector<int64_t>> UnitEnds(const Plan& schedule, const StageGraph& graph) {
  SimulateOptions options;
  options.graph = &graph;
  options.recompute.assign(schedule.stages, false);
  const ActionTrace trace = Simulate(schedule, UnitCosts(), options);
  std::vector<std::vector<int64_t>> ends(trace.ranks.size());
  for (size_t r = 0; r < ends.size(); ++r) {
    ends[r].reserve(trace.ranks[r].size());
    for (const TimedAction& event : trace.ranks[r])
      ends[r].push_back(static_cast<int64_t>(event.end));
  }
  return ends;
}

}  // namespace pipewright
