#include "plan/partition/step_objective.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "plan/lowering/lower.h"
#include "plan/partition/problem/partition_state.h"
#include "plan/partition/step_bound.h"
#include "plan/partition/step_search.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/measure.h"

namespace pipewright {

// Returns the stages as a graph, and in `output` the one-way transfer time of each stage's values.
static StageGraph GraphOf(const PartitionProblem& problem, const PartitionResult& result,
                          std::vector<double>& output) {
  std::vector<int> stage_of = StageOfNode(problem, result);
  StageGraph graph;
  graph.stages = static_cast<int>(result.stages.size());
  std::map<std::pair<int, int>, bool> edges;  // true if gradients come back
  output.assign(result.stages.size(), 0);
  for (const PartitionValue& value : problem.values) {
    if (value.producer < 0) continue;
    int from = stage_of[value.producer];
    if (from < 0) continue;
    bool leaves = false;
    for (int consumer : value.consumers) {
      int to = stage_of[consumer];
      if (to == from || to < 0) continue;
      leaves = true;
      // A backward node's value goes back along the edge of the forward ones.
      bool& gradient = edges[{std::min(from, to), std::max(from, to)}];
      gradient = gradient || value.transfers > 1 || to < from;
    }
    double link = problem.devices[result.stages[from].device_class].link;
    if (leaves) output[from] += value.time / std::max(value.transfers, 1) / link;
  }
  for (const auto& [ends, gradient] : edges)
    graph.edges.push_back({ends.first, ends.second, gradient, 0, 0});
  return graph;
}

// Returns true if each stage sends only to the next and gets a gradient back.
static bool IsChain(const StageGraph& graph) {
  bool chain = static_cast<int>(graph.edges.size()) == graph.stages - 1;
  for (size_t e = 0; chain && e < graph.edges.size(); ++e)
    chain = graph.edges[e].from == static_cast<int>(e) && graph.edges[e].gradient &&
            graph.edges[e].to == graph.edges[e].from + 1;
  return chain;
}

double StepTime(const PartitionProblem& problem, const PartitionResult& result,
                const StepOptions& step, bool* is_chain) {
  Costs costs;
  std::vector<double> output;
  StageGraph graph = GraphOf(problem, result, output);
  costs.stages.resize(graph.stages);
  costs.link.latency = problem.transfer_latency;
  costs.link.bandwidth = 1;  // `output` is a time
  for (int s = 0; s < graph.stages; ++s) {
    const PartitionStage& stage = result.stages[s];
    const DeviceClass& device = problem.devices[stage.device_class];
    StageCosts& cost = costs.stages[s];
    graph.ranks_of.emplace_back();
    for (int r = 0; r < stage.replicas; ++r) graph.ranks_of[s].push_back(graph.ranks++);
    for (int node : stage.nodes) {
      const PartitionNode& n = problem.nodes[node];
      double time = device.host ? n.host_time : n.device_time / device.speed;
      cost.F += time * n.forward_share;
      cost.B += time * (1 - n.forward_share);
    }
    cost.I = cost.W = cost.B / 2;
    cost.output = output[s];
  }
  // Stages that exchange nothing do not wait for each other, but in a plan without transfers the
  // simulator treats stages as a chain.
  if (graph.edges.empty() && graph.stages > 1) {
    if (is_chain) *is_chain = false;
    double longest = 0;
    for (const PartitionStage& stage : result.stages) {
      PartitionResult alone;
      alone.stages = {stage};
      longest = std::max(longest, StepTime(problem, alone, step));
    }
    return longest;
  }
  Plan plan =
      MakeSchedule(step.schedule, graph.ranks, graph.stages, step.microbatches, graph.ranks_of);
  const bool chain = IsChain(graph);
  if (is_chain) *is_chain = chain;
  if (!chain) plan = Lower(plan, graph);
  return Measure(plan, costs, Simulate(plan, costs)).makespan;
}

namespace {

// Improves partitions, and keeps those that were tried for an explanation.
struct StepSearch {
  const PartitionProblem& problem;
  const StepOptions& step;
  int64_t actions = 20'000'000;         // simulated actions left in the budget
  std::vector<PartitionResult> seen{};  // the best of each number of stages, and intermediate ones

  bool Judge(PartitionResult& result) {
    result.objective = StepTime(problem, result, step);
    actions -= static_cast<int64_t>(result.stages.size()) * step.microbatches * 2 + 500;
    return actions > 0;
  }

  // Moves one unit at a time to another stage, whenever that makes the step shorter.
  void Improve(const PartitionProblem& fixed, const UnitGraph& graph, PartitionResult& best) {
    std::vector<int> stage_of = StageOfNode(problem, best);
    auto at = [&](int unit) { return stage_of[graph.units[unit].nodes[0]]; };
    bool better = true;
    while (better) {
      better = false;
      for (size_t u = 0; u < graph.units.size(); ++u) {
        const std::vector<int>& nodes = graph.units[u].nodes;
        int from = at(static_cast<int>(u)), low = 0;
        int high = static_cast<int>(best.stages.size()) - 1;
        for (int before : graph.previous[u]) low = std::max(low, at(before));
        for (int after : graph.next[u]) high = std::min(high, at(after));
        for (int to = low; to <= high; ++to) {
          if (to == from || best.stages[from].nodes.size() == nodes.size()) continue;
          PartitionResult moved = best;
          std::vector<int> left;
          std::set_difference(best.stages[from].nodes.begin(), best.stages[from].nodes.end(),
                              nodes.begin(), nodes.end(), std::back_inserter(left));
          moved.stages[from].nodes = left;
          auto& target = moved.stages[to].nodes;
          target.insert(target.end(), nodes.begin(), nodes.end());
          std::sort(target.begin(), target.end());
          EvaluatePartition(problem, moved);
          if (!CheckPartition(fixed, moved).empty()) continue;
          if (!Judge(moved)) return;
          if (moved.objective >= best.objective * (1 - 1e-9)) continue;
          if (seen.size() < 256) seen.push_back(best);
          best = moved;
          for (int node : nodes) stage_of[node] = to;
          from = to;
          better = true;
        }
      }
    }
  }
};

// Returns a start for problems to which SearchSteps does not apply: the best partition that it
// finds for equal devices, one per stage, with GPipe or 1F1B. Stages with more compute get faster
// devices.
PartitionResult BestOfLikeDevices(PartitionProblem fixed, const UnitGraph& graph,
                                  const SolveOptions& options, const StepOptions& step,
                                  int64_t actions) {
  PartitionResult none;
  std::vector<int> classes;  // by device
  for (size_t c = 0; c < fixed.devices.size(); ++c) {
    if (fixed.devices[c].host && fixed.devices[c].count > 0) return none;
    classes.insert(classes.end(), fixed.devices[c].count, static_cast<int>(c));
  }
  if (!fixed.pair_links.empty() || classes.empty()) return none;
  for (const PartitionNode& node : fixed.nodes)
    if (node.backward) return none;
  const std::vector<DeviceClass> devices = fixed.devices;
  std::stable_sort(classes.begin(), classes.end(),
                   [&](int a, int b) { return devices[a].speed > devices[b].speed; });
  fixed.devices = {devices[classes[0]]};
  fixed.devices[0].count = static_cast<int>(classes.size());
  fixed.devices[0].numbers.clear();
  for (int c : classes)
    fixed.devices[0].memory_bytes =
        std::max(fixed.devices[0].memory_bytes, devices[c].memory_bytes);
  fixed.max_replicas = 1;
  const bool known = OrderOf(step.schedule) != ScheduleOrder::kOther;
  const StepOptions simple{known ? step.schedule : kDefaultSchedule, step.microbatches};
  PartitionResult best = SolvePartition(fixed, options);
  if (!best.feasible) return none;
  StepSearch search{fixed, simple, actions};
  search.Judge(best);
  search.Improve(fixed, graph, best);
  best.lower_bound = StepBound(fixed, simple);
  SearchSteps(fixed, simple, actions, best);
  std::vector<size_t> order(best.stages.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return best.stages[a].compute > best.stages[b].compute;
  });
  for (size_t i = 0; i < order.size(); ++i) {
    PartitionStage stage;
    stage.nodes = std::move(best.stages[order[i]].nodes);
    stage.device_class = classes[i];
    best.stages[order[i]] = std::move(stage);
  }
  return best;
}

// Finds the stage that computes longest, and the shortest step in `seen` without that stage.
Explanation Explain(const PartitionResult& best, const std::vector<PartitionResult>& seen) {
  Explanation explanation;
  explanation.binds = "compute";
  for (size_t s = 0; s < best.stages.size(); ++s)
    if (explanation.stage < 0 || best.stages[s].compute > best.stages[explanation.stage].compute)
      explanation.stage = static_cast<int>(s);
  if (explanation.stage < 0) return explanation;
  const PartitionStage& slowest = best.stages[explanation.stage];
  if (slowest.transfer > slowest.compute) explanation.binds = "transfer";
  for (const PartitionResult& other : seen) {
    bool same = false;
    for (const PartitionStage& stage : other.stages) same = same || stage.nodes == slowest.nodes;
    if (!same) explanation.next_best = std::min(explanation.next_best, other.objective);
  }
  return explanation;
}

}  // namespace

PartitionResult SolveStep(const PartitionProblem& given, const SolveOptions& options,
                          const StepOptions& step, Explanation* explanation) {
  int devices = 0;
  for (const DeviceClass& device : given.devices) devices += device.count;
  PartitionProblem problem = given;
  // Each of the other stages needs a device.
  problem.max_replicas =
      std::clamp(devices - std::max(problem.stages, 1) + 1, 1, problem.max_replicas);
  int least = problem.stages > 0 ? problem.stages : 1;
  int most = problem.stages > 0 ? problem.stages : devices;
  PartitionResult best;
  UnitGraph graph = BuildUnits(problem, Merge::kLossless);
  StepSearch search{problem, step};
  const int64_t actions = options.exact ? 300'000'000 : 30'000'000;
  std::string refused;
  bool looked_at_all = true;  // each number of stages has a result or is proven infeasible
  for (int stages = least; stages <= most; ++stages) {
    PartitionProblem fixed = problem;
    fixed.stages = stages;
    PartitionResult result = SolvePartition(fixed, options);
    if (!result.feasible) {
      looked_at_all = looked_at_all && result.proven;
      continue;
    }
    try {
      search.Judge(result);
      PartitionState cuts = EqualCuts(problem, graph, stages);
      if (!cuts.options.empty()) {
        PartitionResult equal = ResultOfStages(problem, graph, cuts);
        if (CheckPartition(fixed, equal).empty()) {
          search.Judge(equal);
          search.seen.push_back(equal);
          if (equal.objective < result.objective) result = equal;
        }
      }
      search.Improve(fixed, graph, result);
      PartitionResult start;
      if (!IsSearchable(fixed, step))
        start = BestOfLikeDevices(fixed, graph, options, step, actions / (most - least + 1));
      if (start.feasible) EvaluatePartition(problem, start);
      if (start.feasible && CheckPartition(fixed, start).empty()) {
        search.Judge(start);
        search.Improve(fixed, graph, start);
        if (start.objective < result.objective) {
          search.seen.push_back(result);
          result = start;
        }
      }
    } catch (const Error& e) {
      refused = e.what();  // the schedule is not defined for this number of stages
      continue;
    }
    search.seen.push_back(result);
    if (!best.feasible || result.objective < best.objective) best = result;
  }
  if (!best.feasible && !refused.empty()) throw Error("--schedule", refused);
  best.lower_bound = looked_at_all ? kInfinity : StepBound(problem, step);
  if (best.feasible) {
    best.lower_bound = std::max(StepBound(problem, step),
                                StepBoundOfStages(problem, step, best.objective, options));
    SearchSteps(problem, step, actions, best);
  }
  best.proven =
      best.feasible ? best.objective <= best.lower_bound * (1 + 1e-12) : looked_at_all;
  if (explanation && best.feasible) *explanation = Explain(best, search.seen);
  return best;
}

}  // namespace pipewright
