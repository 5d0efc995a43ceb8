#include "plan/partition/fast.h"

#include <algorithm>
#include <numeric>

#include "plan/partition/exact.h"
#include "plan/partition/multilevel.h"
#include "plan/partition/windows.h"

namespace pipewright {

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

namespace {

struct Fast {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const FastOptions& options;
  const Resources& resources;
  StagedUnits best;
  double load;                            // of `best`
  std::vector<std::vector<int>> found{};  // stages of units, of every partition that was looked at

  bool Offer(const StagedUnits& units) {
    if (units.options.empty()) return false;
    found.push_back(units.stage_of);
    double offered = StageTable(problem, graph, units).LargestLoad();
    if (offered >= load * (1 - 1e-12)) return false;
    best = units;
    load = offered;
    return true;
  }

  void CutOrders() {
    for (const std::vector<int>& order : CandidateOrders(graph)) {
      OrderCuts cuts = CutOrder(problem, graph, resources, order, load, options.pairs);
      if (cuts.stages.empty()) continue;
      StagedUnits units = StagesOfCuts(order, cuts);
      StageTable table(problem, graph, units);
      int64_t steps = options.pairs;
      Refine(graph, table, {32, 4, &steps});
      if (!Offer(table.units())) Offer(units);
    }
  }

  // Partitions from coarse graphs: each way to make them coarse once, then with the best one's
  // stages kept apart, and with what is apart in some other one.
  void Levels() {
    int n = static_cast<int>(graph.units.size());
    int runs = std::clamp(options.units / std::max(n, 1), 2, 6);
    MultilevelOptions level;
    for (int run = 0; run < runs; ++run) {
      bool fresh = run < 3 && run <= runs / 3;
      level.rating = run % 3;
      if (fresh || best.options.empty()) {
        Offer(MultilevelPartition(problem, graph, resources, level));
        continue;
      }
      StagedUnits start = best;
      std::vector<int> apart = best.stage_of;
      const std::vector<int>& other = found[found.size() - 1 - run % found.size()];
      int stages = static_cast<int>(best.options.size());
      if (run % 2 == 0)
        for (int u = 0; u < n; ++u) apart[u] += stages * other[u];
      level.start = &start, level.apart = &apart;
      Offer(MultilevelPartition(problem, graph, resources, level));
      level.start = nullptr, level.apart = nullptr;
    }
  }
};

}  // namespace

PartitionResult FastPartition(const PartitionProblem& problem, const UnitGraph& graph,
                              const FastOptions& options) {
  Resources resources(problem);
  PartitionResult result;
  result.objective = options.below;
  result.lower_bound = PartitionLowerBound(problem, graph);
  if (result.lower_bound == kInfinity) {
    result.proven = true;
    return result;
  }
  Fast fast{problem, graph, options, resources, {}, options.below};
  auto optimal = [&] { return fast.load <= result.lower_bound * (1 + 1e-12); };
  fast.CutOrders();
  // The smallest graphs an exact search settles at once.
  if (!optimal() && graph.units.size() > 40) fast.Levels();
  if (fast.best.options.empty()) return result;
  double bound = result.lower_bound;
  result = ResultOfStages(problem, graph, fast.best);
  int free = 32;
  std::vector<int> order(graph.units.size());
  std::iota(order.begin(), order.end(), 0);
  order = OrderByStage(order, fast.best);
  for (int round = 0; round < options.rounds && !optimal(); ++round) {
    PartitionResult found = SearchNearby(problem, graph, order, result, options, free);
    if (!found.feasible || found.objective >= result.objective) break;
    result = found;
    order = OrderByStage(order, StagesOfResult(graph, result));
  }
  result.lower_bound = bound;
  if (result.objective > bound * (1 + 1e-12))
    result = ImproveWindows(problem, graph, order, result, options.windows);
  result.proven = result.objective <= bound * (1 + 1e-12);
  return result;
}

}  // namespace pipewright
