#include "plan/partition/fast/multilevel.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "plan/partition/exact/exact.h"
#include "plan/partition/fast/orders.h"
#include "plan/partition/fast/sequence_dp.h"
#include "plan/partition/problem/clusters.h"

namespace pipewright {

namespace {

constexpr int64_t kCoarsenSteps = 200;  // per unit and pin, to coarsen a level

// A graph of more units than this is cut again in only two orders, because each takes long.
constexpr size_t kManyUnits = 700, kFewOrders = 2;
constexpr int64_t kExactSets = 6'000;  // limit of the exact search of one level

// Coarsening ends at 2 units per stage plus 8.
constexpr int kUnitsPerStage = 2, kMoreUnits = 8;
// The most work of a cluster, as a multiple of the average unit of its level.
constexpr double kClusterUnits = 6;
// A level of at most 6 units per stage plus 150 is also cut from scratch, for a better start.
constexpr int kStartUnitsPerStage = 6, kMoreStartUnits = 150;

constexpr int64_t kExactTicks = 30'000'000;  // the limit for the exact search of one level

struct Multilevel {
  const PartitionProblem& problem;
  const Resources& resources;
  const MultilevelOptions& options;
  int64_t& steps;
  int stages = 1;                                        // at most
  double work = 0;                                       // the sum over all units, in device time
  double most_work = kInfinity, most_bytes = kInfinity;  // the limits of a cluster
  bool too_wide = false;  // a level had too many sets of units for an exact search

  double Load(const UnitGraph& graph, const PartitionState& units) const {
    if (units.options.empty()) return kInfinity;
    return StageTable(problem, graph, units).LargestLoad();
  }

  // Refines `units` and keeps the best, by the largest load.
  void RefineAll(const UnitGraph& graph, PartitionState& units) {
    StageTable table(problem, graph, units);
    double best = table.LargestLoad();
    for (int round = 0; round < 2; ++round) {
      double before = best;
      for (int power : {2, 8, 32}) {
        Refine(graph, table, {power, 2, &steps});
        if (table.LargestLoad() < best) best = table.LargestLoad(), units = table.units();
      }
      if (best >= before * (1 - 1e-9)) break;
    }
  }

  // Returns the best cuts of many orders.
  PartitionState Start(const UnitGraph& graph) {
    std::vector<std::vector<int>> orders = CandidateOrders(graph);
    PartitionState best;
    double least = kInfinity;
    for (const std::vector<int>& order : orders) {
      if (steps <= 0 && &order != &orders[0]) break;
      SequenceCuts cuts = CutOrder(problem, graph, resources, order, least, options.pairs, steps);
      if (!cuts.stages.empty()) least = cuts.objective, best = StagesOfCuts(order, cuts);
    }
    return best;
  }

  // Cuts again in each of `orders`, sorted by stage.
  bool Recut(const UnitGraph& graph, const std::vector<std::vector<int>>& orders,
             PartitionState& units) {
    double load = Load(graph, units), before = load;
    for (const std::vector<int>& order : orders) {
      std::vector<int> staged = OrderByStage(order, units);
      SequenceCuts cuts = CutOrder(problem, graph, resources, staged, load, options.pairs, steps);
      if (cuts.stages.empty()) continue;
      units = StagesOfCuts(staged, cuts);
      load = Load(graph, units);
    }
    return load < before * (1 - 1e-9);
  }

  void Settle(const UnitGraph& graph, PartitionState& units) {
    std::vector<std::vector<int>> orders = CandidateOrders(graph);
    if (graph.units.size() > kManyUnits) orders.resize(std::min(orders.size(), kFewOrders));
    for (int round = 0; round < 10 && steps > 0; ++round) {
      RefineAll(graph, units);
      if (!Recut(graph, orders, units)) break;
    }
  }

  // Finds the optimum of a graph that has few enough sets of units.
  void Exact(const UnitGraph& graph, PartitionState& units) {
    if (too_wide) return;
    ExactOptions exact;
    exact.below = Load(graph, units);
    exact.max_sets = kExactSets;
    int64_t ticks = kExactTicks;
    exact.ticks = &ticks;
    exact.sequence = options.sequence;
    PartitionResult found = ExactPartition(problem, graph, exact);
    steps -= (kExactTicks - ticks) / 8;
    too_wide = !found.proven;
    if (!found.feasible) return;
    units = StagesOfResult(graph, found);
  }
};

}  // namespace

// Limits a cluster to a stage's even share of the work and half the least memory.
static void LimitClusters(const PartitionProblem& problem, const UnitGraph& graph,
                          Multilevel& search) {
  double work = 0, fastest = 1;
  for (const Unit& unit : graph.units) work += unit.device_time;
  int devices = 0;
  for (const DeviceClass& device : problem.devices) {
    if (device.host || device.count == 0) continue;
    devices += device.count;
    fastest = std::max(fastest, device.speed);
    search.most_bytes = std::min(search.most_bytes, device.memory_bytes / 2);
  }
  search.stages = std::max(problem.stages > 0 ? problem.stages : devices, 1);
  search.work = work;
  search.most_work = work / std::max(devices, 1) * fastest * (1 + 1e-9);
}

// Replaces values by unit with values by group. Members of a group have the same value.
static void Project(const std::vector<int>& group_of, size_t groups, std::vector<int>& of_unit) {
  if (of_unit.empty()) return;
  std::vector<int> of_group(groups);
  for (size_t u = 0; u < group_of.size(); ++u) of_group[group_of[u]] = of_unit[u];
  of_unit = of_group;
}

PartitionState MultilevelPartition(const PartitionProblem& problem, const UnitGraph& graph,
                                   const Resources& resources, const MultilevelOptions& options) {
  Multilevel search{problem, resources, options, *options.steps};
  LimitClusters(problem, graph, search);
  search.most_work *= options.size;
  if (problem.stages < 0)
    search.stages = std::max(static_cast<int>(search.stages / options.size), 1);
  PartitionState units;
  std::vector<int> apart;
  if (options.start) units = *options.start, apart = *options.apart;
  std::deque<Coarser> levels;
  const UnitGraph* coarsest = &graph;
  const size_t fewest = static_cast<size_t>(kUnitsPerStage * search.stages + kMoreUnits);
  while (coarsest->units.size() > fewest) {
    ClusterOptions cluster;
    size_t count = coarsest->units.size();
    search.steps -= kCoarsenSteps * GraphSize(*coarsest);
    const double average = search.work / static_cast<double>(count);
    cluster.most_work = std::min(search.most_work, kClusterUnits * average);
    cluster.most_bytes = search.most_bytes;
    cluster.rating = options.rating;
    cluster.seed = options.seed;
    if (options.start) cluster.apart = &apart;
    Coarser next = CoarsenByTraffic(*coarsest, problem.transfer_latency, cluster);
    if (next.graph.units.size() * 20 > count * 19) break;
    Project(next.group_of, next.graph.units.size(), apart);
    Project(next.group_of, next.graph.units.size(), units.stage_of);
    levels.push_back(std::move(next));
    coarsest = &levels.back().graph;
  }
  const size_t start_size =
      static_cast<size_t>(kStartUnitsPerStage * search.stages + kMoreStartUnits);
  for (size_t level = levels.size() + 1; level-- > 0;) {
    const UnitGraph& here = level > 0 ? levels[level - 1].graph : graph;
    if (units.options.empty() || here.units.size() <= start_size) {
      PartitionState other = search.Start(here);
      if (!units.options.empty() && !other.options.empty()) search.Settle(here, other);
      if (search.Load(here, other) < search.Load(here, units)) units = other;
    }
    if (units.options.empty()) continue;
    search.Settle(here, units);
    search.Exact(here, units);
    if (level == 0) continue;
    const std::vector<int>& group_of = levels[level - 1].group_of;
    std::vector<int> stage_of(group_of.size());
    for (size_t u = 0; u < group_of.size(); ++u) stage_of[u] = units.stage_of[group_of[u]];
    units.stage_of = stage_of;
  }
  return units;
}

}  // namespace pipewright
