#include "plan/partition/step_bound.h"

#include <algorithm>
#include <cmath>

#include "plan/partition/longest_paths.h"

namespace pipewright {

double StepBound(const PartitionProblem& problem, const StepOptions& step) {
  double speed = FastestDevice(problem), devices = 0, work = 0, bound = 0;
  if (speed == 0) return 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  LongestPaths paths(problem, graph, step, speed);
  double share = std::max(problem.max_replicas, 1);
  // In 1F1B at most `most` microbatches are in flight: the next one waits until one has come back.
  const bool returns =
      OrderOf(step.schedule) == ScheduleOrder::kAlternating && problem.max_replicas == 1;
  const double most = problem.stages > 0 ? problem.stages : devices;
  for (size_t u = 0; u < graph.units.size(); ++u) {
    work += paths.own[u];
    double times = std::max(1.0, step.microbatches / share);
    double whole = paths.own[u] * times, first = paths.until_gradient[u] * times + paths.back[u];
    bound = std::max(bound, paths.to[u] + std::max(whole, first));
    if (returns) bound = std::max(bound, std::ceil(step.microbatches / most) * paths.round[u]);
  }
  return std::max(bound, work * step.microbatches / devices);
}

double StepBoundOfStages(const PartitionProblem& problem, const StepOptions& step, double known,
                         const SolveOptions& options) {
  double speed = FastestDevice(problem);
  if (speed == 0) return 0;
  PartitionProblem free = problem;
  free.pair_links.clear();
  free.transfer_latency = free.exchange_time = 0;
  for (PartitionValue& value : free.values) value.time = 0, value.transfers = 0;
  UnitGraph graph = BuildUnits(free, ExactMerge(free));
  LongestPaths paths(problem, graph, step, speed);
  ExactOptions exact;
  exact.below = known;
  exact.max_sets = 200'000;
  exact.max_visits = 100'000'000;
  exact.max_seconds = options.max_seconds;
  exact.repeat = step.microbatches;
  // If the backward is split, W may run while gradients are on their path.
  bool split = SplitsBackward(step.schedule);
  for (size_t u = 0; u < graph.units.size(); ++u)
    exact.lead.push_back(paths.to_alone[u] + (split ? 0 : paths.back_alone[u]));
  PartitionResult found = ExactPartition(free, graph, exact);
  if (!found.proven) return 0;
  return found.feasible ? found.lower_bound : known;
}

}  // namespace pipewright
