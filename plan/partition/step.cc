#include "plan/partition/step.h"

#include <algorithm>
#include <set>

#include "plan/error.h"
#include "plan/schedule.h"
#include "plan/simulate.h"

namespace pipewright {

static std::vector<int> StageOfNode(const PartitionProblem& problem,
                                    const PartitionResult& result) {
  std::vector<int> stage_of(problem.nodes.size(), 0);
  for (size_t s = 0; s < result.stages.size(); ++s)
    for (int node : result.stages[s].nodes) stage_of[node] = static_cast<int>(s);
  return stage_of;
}

double StepTime(const PartitionProblem& problem, const PartitionResult& result,
                const StepOptions& step) {
  int stages = static_cast<int>(result.stages.size()), ranks = 0;
  Placement placement(stages);
  Costs costs;
  costs.stages.resize(stages);
  costs.link.latency = problem.transfer_latency;
  costs.link.bandwidth = 1;  // `output` is a time
  for (int s = 0; s < stages; ++s) {
    const PartitionStage& stage = result.stages[s];
    const DeviceClass& device = problem.devices[stage.device_class];
    StageCosts& cost = costs.stages[s];
    for (int r = 0; r < stage.replicas; ++r) placement[s].push_back(ranks++);
    for (int node : stage.nodes) {
      const PartitionNode& n = problem.nodes[node];
      double time = device.host ? n.host_time : n.device_time / device.speed;
      cost.F += time * n.forward_share;
      cost.B += time * (1 - n.forward_share);
    }
    cost.I = cost.W = cost.B / 2;
  }
  std::vector<int> stage_of = StageOfNode(problem, result);
  for (const PartitionValue& value : problem.values) {
    if (value.producer < 0) continue;
    int from = stage_of[value.producer];
    for (int consumer : value.consumers)
      if (stage_of[consumer] != from) {
        double link = problem.devices[result.stages[from].device_class].link;
        costs.stages[from].output += value.time / std::max(value.transfers, 1) / link;
        break;
      }
  }
  Plan plan = MakeSchedule(step.schedule, ranks, stages, step.microbatches, placement);
  return Measure(plan, costs, Simulate(plan, costs)).makespan;
}

// One microbatch, forward and back, cannot be faster than the longest path through the graph.
static double LowerBound(const PartitionProblem& problem, const StepOptions& step) {
  double work = 0, speed = 0, devices = 0;
  for (const DeviceClass& device : problem.devices) {
    if (device.count == 0 || device.host) continue;
    speed = std::max(speed, device.speed);
    devices += device.count;
  }
  UnitGraph graph = BuildUnits(problem, ExactMerge(problem));
  std::vector<double> path(graph.units.size(), 0);
  double longest = 0;
  for (size_t u = 0; u < graph.units.size(); ++u) {
    for (int before : graph.previous[u]) path[u] = std::max(path[u], path[before]);
    path[u] += graph.units[u].device_time;
    work += graph.units[u].device_time;
    longest = std::max(longest, path[u]);
  }
  if (devices == 0) return 0;
  return std::max(longest, work * step.microbatches / devices) / speed;
}

// Every partition that differs by one unit, moved to a neighbouring stage; the best of them.
static bool MoveOne(const PartitionProblem& problem, const UnitGraph& graph, PartitionResult& best,
                    const StepOptions& step) {
  std::vector<int> stage_of = StageOfNode(problem, best);
  auto at = [&](int unit) { return stage_of[graph.units[unit].nodes[0]]; };
  PartitionResult found = best;
  for (size_t u = 0; u < graph.units.size(); ++u) {
    int unit = static_cast<int>(u), from = at(unit);
    int low = 0, high = static_cast<int>(best.stages.size()) - 1;
    for (int before : graph.previous[u]) low = std::max(low, at(before));
    for (int after : graph.next[u]) high = std::min(high, at(after));
    for (int to : {from - 1, from + 1}) {
      if (to < low || to > high) continue;
      if (best.stages[from].nodes.size() == graph.units[u].nodes.size()) continue;
      PartitionResult moved = best;
      std::set<int> nodes(graph.units[u].nodes.begin(), graph.units[u].nodes.end());
      std::erase_if(moved.stages[from].nodes, [&](int node) { return nodes.count(node) > 0; });
      auto& target = moved.stages[to].nodes;
      target.insert(target.end(), nodes.begin(), nodes.end());
      std::sort(target.begin(), target.end());
      EvaluatePartition(problem, moved);
      if (!CheckPartition(problem, moved).empty()) continue;
      moved.objective = StepTime(problem, moved, step);
      if (moved.objective < found.objective * (1 - 1e-9)) found = moved;
    }
  }
  if (found.objective >= best.objective) return false;
  best = found;
  return true;
}

PartitionResult SolveStep(const PartitionProblem& problem, const SolveOptions& options,
                          const StepOptions& step) {
  int devices = 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  int least = problem.stages > 0 ? problem.stages : 1;
  int most = problem.stages > 0 ? problem.stages : devices;
  PartitionResult best;
  UnitGraph graph = BuildUnits(problem, Merge::kLossless);
  std::string refused;
  for (int stages = least; stages <= most; ++stages) {
    PartitionProblem fixed = problem;
    fixed.stages = stages;
    PartitionResult result = SolvePartition(fixed, options);
    if (!result.feasible) continue;
    try {
      result.objective = StepTime(fixed, result, step);
    } catch (const Error& e) {
      refused = e.what();  // this schedule is not made for so many stages
      continue;
    }
    if (graph.units.size() <= 2000)
      for (int round = 0; round < 50 && MoveOne(fixed, graph, result, step); ++round) continue;
    if (!best.feasible || result.objective < best.objective) best = result;
  }
  if (!best.feasible && !refused.empty()) throw Error("--schedule", refused);
  best.lower_bound = best.feasible ? LowerBound(problem, step) : kInfinity;
  best.proven = !best.feasible || best.objective <= best.lower_bound * (1 + 1e-12);
  return best;
}

}  // namespace pipewright
