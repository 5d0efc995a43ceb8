#include "plan/partition/fast/nearby.h"

#include <algorithm>

#include "plan/partition/exact/exact.h"

namespace pipewright {

// Keeps all that is numbered between two neighbouring cores between them. Else the sets of units
// that are free at each cut would multiply.
static void LinkCores(UnitGraph& graph, const std::vector<int>& cores) {
  auto link = [&](int low, int high) {
    auto& next = graph.next[low];
    if (std::find(next.begin(), next.end(), high) != next.end()) return;
    next.push_back(high);
    graph.previous[high].push_back(low);
  };
  for (size_t c = 0; c + 1 < cores.size(); ++c) {
    link(cores[c], cores[c + 1]);
    for (int between = cores[c] + 1; between < cores[c + 1]; ++between) {
      link(cores[c], between);
      link(between, cores[c + 1]);
    }
  }
}

PartitionResult SearchNearby(const PartitionProblem& problem, const UnitGraph& graph,
                             const std::vector<int>& order, const PartitionResult& known,
                             const FastOptions& options, int& free, int64_t& ticks) {
  std::vector<int> stage_of_node(problem.nodes.size(), 0);
  for (size_t s = 0; s < known.stages.size(); ++s)
    for (int node : known.stages[s].nodes) stage_of_node[node] = static_cast<int>(s);
  int n = static_cast<int>(order.size());
  auto stage_at = [&](int p) { return stage_of_node[graph.units[order[p]].nodes[0]]; };
  for (; free <= kMostFree && ticks > 0; free *= 2) {
    std::vector<int> group_of(n), cores;
    int groups = 0;
    for (int begin = 0, end; begin < n; begin = end) {
      for (end = begin + 1; end < n && stage_at(end) == stage_at(begin);) ++end;
      int at_ends = std::min(free, (end - begin - 1) / 2);
      for (int p = begin; p < end; ++p) {
        if (p == begin + at_ends) cores.push_back(groups);
        bool core = p > begin + at_ends && p < end - at_ends;
        group_of[order[p]] = core ? groups - 1 : groups++;
      }
    }
    UnitGraph coarse = Coarsen(graph, group_of, groups);
    LinkCores(coarse, cores);
    ExactOptions exact;
    exact.below = known.objective;
    exact.max_sets = std::min(options.nearby_sets, ExactSets(coarse, options));
    exact.ticks = &ticks;
    exact.sequence = options.sequence;
    PartitionResult found = ExactPartition(problem, coarse, exact);
    if (found.feasible || !found.proven) return found;
  }
  return PartitionResult();
}

}  // namespace pipewright
