#include "plan/partition/fast/windows.h"

#include <algorithm>

#include "plan/partition/exact/exact.h"

namespace pipewright {

namespace {

constexpr int64_t kCoarsenTicks = 100;  // per unit and pin of the graph, for Coarse
// Units at each end of a window's stage that may move: first all; then, if there are too many sets,
// 16, 8 and 4.
constexpr int kMostFreeUnits = 1 << 20;
constexpr int kManyFreeUnits = 64, kFewFreeUnits = 16, kLeastFreeUnits = 4;
constexpr int64_t kMostTicks = 30'000'000;  // the limit for one window

struct Windows {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  std::vector<int> order;
  PartitionResult known;
  int64_t sets;
  int64_t& ticks;
  const DeviceSequence* sequence;
  std::vector<int> stage_of{};  // by unit

  void Sort() {
    std::vector<int> of_node(problem.nodes.size(), 0);
    for (size_t s = 0; s < known.stages.size(); ++s)
      for (int node : known.stages[s].nodes) of_node[node] = static_cast<int>(s);
    stage_of.resize(graph.units.size());
    for (size_t u = 0; u < stage_of.size(); ++u) stage_of[u] = of_node[graph.units[u].nodes[0]];
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return stage_of[a] < stage_of[b]; });
  }

  // Makes one group of each stage outside of [first, last], and of each unit inside, except that
  // the units of a stage that are more than `free` units from both its ends form one group.
  UnitGraph Coarse(int first, int last, int free) const {
    std::vector<int> group_of(order.size());
    std::vector<int> lone;  // groups that are whole stages
    int groups = 0, before = -1, n = static_cast<int>(order.size());
    for (int begin = 0, end; begin < n; begin = end) {
      int stage = stage_of[order[begin]];
      for (end = begin + 1; end < n && stage_of[order[end]] == stage;) ++end;
      bool inside = stage >= first && stage <= last;
      if (!inside) lone.push_back(groups);
      if (stage < first) before = groups;
      for (int p = begin; p < end; ++p) {
        bool core = inside ? p >= begin + free && p < end - free && p > begin + free : p > begin;
        group_of[order[p]] = core ? groups - 1 : groups++;
      }
    }
    UnitGraph coarse = Coarsen(graph, group_of, groups);
    // Stages outside keep their order, and the whole window stays between them.
    auto link = [&](int low, int high) {
      auto& next = coarse.next[low];
      if (std::find(next.begin(), next.end(), high) != next.end()) return;
      next.push_back(high);
      coarse.previous[high].push_back(low);
    };
    for (size_t i = 0; i + 1 < lone.size(); ++i) link(lone[i], lone[i + 1]);
    int behind = before + 1;  // the window's groups are numbered between the two
    while (behind < groups && !std::binary_search(lone.begin(), lone.end(), behind)) ++behind;
    for (int group = before + 1; group < behind; ++group) {
      if (before >= 0) link(before, group);
      if (behind < groups) link(group, behind);
    }
    return coarse;
  }

  bool Try(int first, int last) {
    for (int free = kMostFreeUnits; free >= kLeastFreeUnits && ticks > 0;) {
      ExactOptions exact;
      exact.below = known.objective * (1 - 1e-9);
      exact.max_sets = sets;
      int64_t own = std::min(ticks, kMostTicks), all = own;
      exact.ticks = &own;
      exact.sequence = sequence;
      PartitionResult found = ExactPartition(problem, Coarse(first, last, free), exact);
      ticks -= all - own + kCoarsenTicks * GraphSize(graph);  // includes the cost of Coarse
      if (found.feasible && found.objective < known.objective) {
        found.lower_bound = known.lower_bound;
        found.proven = false;
        known = found;
        Sort();
        return true;
      }
      if (found.proven) return false;
      free = free > kManyFreeUnits ? kFewFreeUnits : free / 2;
    }
    return false;
  }

  void Run() {
    Sort();
    bool moved = true;
    while (moved && ticks > 0) {
      moved = false;
      int count = static_cast<int>(known.stages.size()), slowest = 0;
      for (int s = 1; s < count; ++s)
        if (known.stages[s].Load() > known.stages[slowest].Load()) slowest = s;
      for (int width : {2, 3, 4, 6}) {
        if (width > count && width > 2) break;
        for (int first = slowest - width + 1; first <= slowest && !moved && ticks > 0; ++first) {
          if (first < 0 || first + width > count) continue;
          moved = Try(first, first + width - 1);
        }
        if (moved) break;
      }
    }
  }
};

}  // namespace

PartitionResult ImproveWindows(const PartitionProblem& problem, const UnitGraph& graph,
                               std::vector<int> order, PartitionResult known,
                               const WindowOptions& options, int64_t& ticks) {
  if (!known.feasible || known.stages.size() < 2) return known;
  Windows windows{problem, graph,          std::move(order), std::move(known), options.sets,
                  ticks,   options.sequence};
  windows.Run();
  return windows.known;
}

}  // namespace pipewright
