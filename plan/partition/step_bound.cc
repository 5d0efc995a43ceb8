#include <algorithm>
#include <cmath>
#include <map>

#include "plan/partition/step_objective.h"
#include "plan/partition/step_ways.h"
#include "plan/schedules/table.h"

namespace pipewright {

bool SplitsBackward(const std::string& schedule) {
  const ScheduleKind* kind = FindSchedule(schedule);
  return !kind || kind->splits_backward;
}

namespace {

struct Way {
  double time = 0;        // one way, over the best link
  bool gradient = false;  // whether a gradient comes back, so that the one before waits for it
};

}  // namespace

static std::map<std::pair<int, int>, Way> WaysBetween(const PartitionProblem& problem,
                                                      const UnitGraph& graph) {
  std::vector<int> unit_of(problem.nodes.size(), 0);
  for (size_t u = 0; u < graph.units.size(); ++u)
    for (int node : graph.units[u].nodes) unit_of[node] = static_cast<int>(u);
  double link = 0;
  for (const DeviceClass& device : problem.devices)
    if (device.count > 0) link = std::max(link, device.link);
  std::map<std::pair<int, int>, Way> ways;
  for (const PartitionValue& value : problem.values) {
    if (value.producer < 0) continue;
    bool backward = problem.nodes[value.producer].backward;
    for (int consumer : value.consumers) {
      if (problem.nodes[consumer].backward != backward) continue;
      int from = unit_of[value.producer], to = unit_of[consumer];
      Way& way = backward ? ways[{to, from}] : ways[{from, to}];
      way.gradient = way.gradient || backward || value.transfers > 1;
      if (backward) continue;
      double time = value.time / std::max(value.transfers, 1) / link;
      way.time = std::max(way.time, time + problem.transfer_latency);
    }
  }
  return ways;
}

Ways::Ways(const PartitionProblem& problem, const UnitGraph& graph, const StepOptions& step,
           double speed) {
  size_t count = graph.units.size();
  for (auto* list : {&to, &back, &own, &until_gradient, &to_alone, &back_alone, &round})
    list->assign(count, 0);
  entries.resize(count);
  std::vector<double> forward(count, 0), backward(count, 0);
  std::map<std::pair<int, int>, Way> ways = WaysBetween(problem, graph);
  double half = SplitsBackward(step.schedule) ? 0.5 : 1;
  for (int u = 0; u < static_cast<int>(count); ++u) {
    for (int node : graph.units[u].nodes) {
      const PartitionNode& n = problem.nodes[node];
      forward[u] += n.device_time * n.forward_share / speed;
      backward[u] += n.device_time * (1 - n.forward_share) * half / speed;
      own[u] += n.device_time / speed;
    }
    until_gradient[u] = forward[u] + backward[u];
    round[u] = until_gradient[u];
    for (int before : graph.previous[u]) {
      const Way& way = ways[{before, u}];
      double there = to[before] + forward[before], home = 0;
      to[u] = std::max(to[u], there);
      to_alone[u] = std::max(to_alone[u], there + way.time);
      if (way.gradient) {
        home = back[before] + backward[before];
        back[u] = std::max(back[u], home);
        home += way.time;
        back_alone[u] = std::max(back_alone[u], home);
        round[u] = std::max(round[u], round[before] + until_gradient[u]);
      }
      entries[u].push_back({before, way.time, there + way.time, home, way.gradient});
    }
  }
}

double FastestDevice(const PartitionProblem& problem) {
  double speed = 0;
  for (const DeviceClass& device : problem.devices) {
    if (device.count > 0 && device.host) return 0;
    if (device.count > 0) speed = std::max(speed, device.speed);
  }
  return speed;
}

double StepBound(const PartitionProblem& problem, const StepOptions& step) {
  double speed = FastestDevice(problem), devices = 0, work = 0, bound = 0;
  if (speed == 0) return 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  Ways ways(problem, graph, step, speed);
  double share = std::max(problem.max_replicas, 1);
  // As 1F1B has it, a stage begins a microbatch when one of at most so many before has come back.
  const bool returns = step.schedule == "1f1b" && problem.max_replicas == 1;
  const double most = problem.stages > 0 ? problem.stages : devices;
  for (size_t u = 0; u < graph.units.size(); ++u) {
    work += ways.own[u];
    double times = std::max(1.0, step.microbatches / share);
    double whole = ways.own[u] * times, first = ways.until_gradient[u] * times + ways.back[u];
    bound = std::max(bound, ways.to[u] + std::max(whole, first));
    if (returns) bound = std::max(bound, std::ceil(step.microbatches / most) * ways.round[u]);
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
  Ways ways(problem, graph, step, speed);
  ExactOptions exact;
  exact.below = known;
  exact.max_sets = 200'000;
  exact.max_visits = 100'000'000;
  exact.max_seconds = options.max_seconds;
  exact.repeat = step.microbatches;
  // Where the backward is in halves, the second ones may come while gradients are on their way.
  bool split = SplitsBackward(step.schedule);
  for (size_t u = 0; u < graph.units.size(); ++u)
    exact.lead.push_back(ways.to_alone[u] + (split ? 0 : ways.back_alone[u]));
  PartitionResult found = ExactPartition(free, graph, exact);
  if (!found.proven) return 0;
  return found.feasible ? found.lower_bound : known;
}

}  // namespace pipewright
