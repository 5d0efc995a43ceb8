#include "plan/partition/fast.h"

#include <algorithm>
#include <numeric>

#include "plan/partition/exact.h"
#include "plan/partition/order_cuts.h"
#include "plan/partition/windows.h"

namespace pipewright {

namespace {

// A partition of the units under change.
struct Stages {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  std::vector<StageLoad> loads;
  std::vector<StageOption> options;
  std::vector<int> devices_after;
  std::vector<int> stage_of, size;

  double Load(int s) const { return loads[s].Load(options[s], devices_after[s]); }
};

}  // namespace

static Stages Build(const PartitionProblem& problem, const UnitGraph& graph,
                    const std::vector<int>& order, const OrderCuts& cuts) {
  Stages stages{problem, graph, {}, {}, {}, std::vector<int>(order.size()), {}};
  for (size_t s = 0; s < cuts.stages.size(); ++s) {
    stages.loads.emplace_back(problem, graph);
    stages.options.push_back(cuts.stages[s].option);
    stages.size.push_back(cuts.stages[s].end - cuts.stages[s].begin);
    for (int p = cuts.stages[s].begin; p < cuts.stages[s].end; ++p) {
      stages.stage_of[order[p]] = static_cast<int>(s);
      stages.loads[s].Add(order[p]);
    }
  }
  int after = 0;
  stages.devices_after.resize(cuts.stages.size());
  for (size_t s = cuts.stages.size(); s-- > 0;) {
    stages.devices_after[s] = after;
    after += cuts.stages[s].option.replicas;
  }
  return stages;
}

// Moves units out of the slowest stage while that makes it, and the stage that takes the unit, less
// loaded than it was. Returns whether anything moved.
static bool Improve(Stages& stages, int64_t steps) {
  int count = static_cast<int>(stages.options.size());
  const UnitGraph& graph = stages.graph;
  std::vector<std::vector<int>> members(count);
  for (size_t u = 0; u < stages.stage_of.size(); ++u)
    members[stages.stage_of[u]].push_back(static_cast<int>(u));
  bool moved = false;
  while (steps > 0) {
    int slowest = 0;
    for (int s = 1; s < count; ++s)
      if (stages.Load(s) > stages.Load(slowest)) slowest = s;
    double load = stages.Load(slowest), best = load * (1 - 1e-9);
    int unit = -1, target = -1;
    if (stages.size[slowest] < 2) return moved;
    for (int u : members[slowest]) {
      int low = 0, high = count - 1;
      for (int before : graph.previous[u]) low = std::max(low, stages.stage_of[before]);
      for (int after : graph.next[u]) high = std::min(high, stages.stage_of[after]);
      if (low == high) continue;
      --steps;
      stages.loads[slowest].Remove(u);
      double left = stages.Load(slowest);
      for (int t = low; left < best && t <= high; ++t) {
        if (t == slowest) continue;
        stages.loads[t].Add(u);
        double value = std::max(left, stages.Load(t));
        stages.loads[t].Remove(u);
        if (value < best) best = value, unit = u, target = t;
        --steps;
      }
      stages.loads[slowest].Add(u);
    }
    if (unit < 0) return moved;
    stages.loads[slowest].Remove(unit);
    stages.loads[target].Add(unit);
    stages.stage_of[unit] = target;
    --stages.size[slowest], ++stages.size[target];
    std::erase(members[slowest], unit);
    members[target].push_back(unit);
    moved = true;
  }
  return moved;
}

static PartitionResult Result(const Stages& stages) {
  PartitionResult result;
  result.stages.resize(stages.options.size());
  for (size_t u = 0; u < stages.stage_of.size(); ++u) {
    auto& nodes = result.stages[stages.stage_of[u]].nodes;
    nodes.insert(nodes.end(), stages.graph.units[u].nodes.begin(),
                 stages.graph.units[u].nodes.end());
  }
  for (size_t s = 0; s < stages.options.size(); ++s) {
    std::sort(result.stages[s].nodes.begin(), result.stages[s].nodes.end());
    result.stages[s].device_class = stages.options[s].device_class;
    result.stages[s].replicas = stages.options[s].replicas;
  }
  result.feasible = true;
  EvaluatePartition(stages.problem, result);
  return result;
}

// The best of all partitions whose cuts lie near those of `known`: within each stage only the first
// and the last units in `order` may go to its neighbours, the rest is one unit. `order` has the
// stages one after the other. `free` is the number of units, halved until the search is small.
static PartitionResult SearchNearby(const PartitionProblem& problem, const UnitGraph& graph,
                                    const std::vector<int>& order, const PartitionResult& known,
                                    const FastOptions& options, int& free) {
  std::vector<int> stage_of_node(problem.nodes.size(), 0);
  for (size_t s = 0; s < known.stages.size(); ++s)
    for (int node : known.stages[s].nodes) stage_of_node[node] = static_cast<int>(s);
  int n = static_cast<int>(order.size());
  auto stage_at = [&](int p) { return stage_of_node[graph.units[order[p]].nodes[0]]; };
  for (; free >= 2; free /= 2) {
    std::vector<int> group_of(n);
    int groups = 0;
    for (int begin = 0, end; begin < n; begin = end) {
      for (end = begin + 1; end < n && stage_at(end) == stage_at(begin);) ++end;
      for (int p = begin; p < end; ++p) {
        bool core = p >= begin + free && p < end - free && p > begin + free;
        group_of[order[p]] = core ? groups - 1 : groups++;
      }
    }
    ExactOptions exact;
    exact.below = known.objective;
    exact.max_sets = options.nearby_sets;
    exact.max_visits = options.nearby_visits;
    PartitionResult found = ExactPartition(problem, Coarsen(graph, group_of, groups), exact);
    if (found.feasible || found.proven) return found;
  }
  return PartitionResult();
}

PartitionResult FastPartition(const PartitionProblem& problem, const UnitGraph& graph,
                              const FastOptions& options) {
  Resources resources(problem);
  PartitionResult best;
  best.objective = options.below;
  best.lower_bound = PartitionLowerBound(problem, graph);
  if (best.lower_bound == kInfinity) {
    best.proven = true;
    return best;
  }
  std::vector<int> best_order;
  auto by_stage = [&](std::vector<int> order, const PartitionResult& result) {
    std::vector<int> stage_of(problem.nodes.size(), 0);
    for (size_t s = 0; s < result.stages.size(); ++s)
      for (int node : result.stages[s].nodes) stage_of[node] = static_cast<int>(s);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return stage_of[graph.units[a].nodes[0]] < stage_of[graph.units[b].nodes[0]];
    });
    return order;
  };
  auto consider = [&](const std::vector<int>& order) {
    OrderCuts cuts = CutOrder(problem, graph, resources, order, best.objective, options.pairs);
    if (cuts.stages.empty()) return false;
    Stages stages = Build(problem, graph, order, cuts);
    Improve(stages, options.pairs / 4);
    PartitionResult result = Result(stages);
    if (result.objective >= best.objective) return false;
    result.lower_bound = best.lower_bound;
    best = result;
    // Stages in turn, each in the order it had: a new order that the cuts can be chosen in again.
    best_order = by_stage(order, result);
    return true;
  };
  for (const std::vector<int>& order : CandidateOrders(graph)) consider(order);
  int free = 32;
  for (int round = 0; round < options.rounds && !best_order.empty(); ++round) {
    bool better = round == 0 && consider(std::vector<int>(best_order));
    PartitionResult found = SearchNearby(problem, graph, best_order, best, options, free);
    if (found.feasible && found.objective < best.objective) {
      found.lower_bound = best.lower_bound;
      best = found;
      best_order = by_stage(best_order, best);
      better = true;
    }
    if (!better) break;
  }
  if (!best_order.empty()) best = ImproveWindows(problem, graph, best_order, best, options.windows);
  best.proven = best.feasible && best.objective <= best.lower_bound * (1 + 1e-12);
  return best;
}

double PartitionLowerBound(const PartitionProblem& problem, const UnitGraph& graph) {
  double work = 0, slowest = 0, bytes = 0, room = 0;
  bool host = false;
  double link = 0;
  int devices = 0;
  for (const DeviceClass& device : problem.devices) {
    if (device.count == 0) continue;
    devices += device.count;
    host = host || device.host;
    room += device.count * (device.host ? kInfinity : device.memory_bytes);
    link = std::max(link, device.link);
  }
  if (devices == 0) return kInfinity;
  for (const Unit& unit : graph.units) {
    double least = kInfinity, replicated = kInfinity;
    for (const DeviceClass& device : problem.devices) {
      if (device.count == 0 || (!device.host && !unit.device_ok)) continue;
      if (!device.host && unit.static_bytes + unit.stash_bytes > device.memory_bytes * (1 + 1e-12))
        continue;
      double time = device.host ? unit.host_time : unit.device_time / device.speed;
      least = std::min(least, time);
      int most = device.host ? 1 : std::min(problem.max_replicas, device.count);
      replicated = std::min(replicated, time / most);
    }
    if (least == kInfinity) return kInfinity;
    work += least;
    slowest = std::max(slowest, replicated);
    bytes += unit.static_bytes + unit.stash_bytes;
  }
  if (problem.max_replicas == 1 && bytes > room * (1 + 1e-12)) return kInfinity;

  // In a connected graph every stage of several cuts at least one net.
  double cheapest = kInfinity;
  std::vector<char> seen(graph.units.size(), 0);
  std::vector<int> stack = {0};
  std::vector<char> net_seen(graph.nets.size(), 0);
  size_t reached = 1;
  seen[0] = 1;
  while (!stack.empty()) {
    int u = stack.back();
    stack.pop_back();
    for (int net : graph.nets_of[u]) {
      if (net_seen[net]) continue;
      net_seen[net] = 1;
      const Net& e = graph.nets[net];
      cheapest = std::min(cheapest, e.time / link + e.transfers * problem.transfer_latency);
      for (int v : e.units)
        if (!seen[v]) seen[v] = 1, ++reached, stack.push_back(v);
    }
  }
  if (host || reached < graph.units.size() || cheapest == kInfinity) cheapest = 0;
  double bound = kInfinity;
  for (int used = 1; used <= devices; ++used) {
    int stages = (used + problem.max_replicas - 1) / problem.max_replicas;
    if (problem.stages >= 0) {
      stages = problem.stages;
      if (used < stages || used > stages * problem.max_replicas) continue;
    }
    bound = std::min(bound, (work + (stages > 1 ? stages * cheapest : 0)) / used);
  }
  return std::max(bound, slowest);
}

}  // namespace pipewright
