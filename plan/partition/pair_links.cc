#include "plan/partition/pair_links.h"

#include <algorithm>
#include <map>

namespace pipewright {

namespace {

constexpr int64_t kWholeSearch = 10'000'000;  // evaluations, times nodes and values

// One partition under change, its devices given.
struct Search {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  PartitionResult best;
  int64_t evaluations = 0;
  std::vector<int> forbidden = {};  // no stage may hold exactly these nodes

  bool Better(PartitionResult& changed) {
    --evaluations;
    for (const PartitionStage& stage : changed.stages)
      if (!forbidden.empty() && stage.nodes == forbidden) return false;
    EvaluatePartition(problem, changed);
    if (changed.objective >= best.objective * (1 - 1e-9)) return false;
    if (!CheckPartition(problem, changed).empty()) return false;
    best = changed;
    return true;
  }

  bool Alike(const PartitionStage& a, const PartitionStage& b) const {
    return a.device_class == b.device_class;
  }

  // Two stages of like devices change one; or a stage takes one that is idle.
  bool ExchangeDevices() {
    std::map<int, std::vector<int>> idle;  // of each class
    for (size_t c = 0; c < problem.devices.size(); ++c)
      for (int d = 0; d < problem.devices[c].count; ++d) {
        const std::vector<int>& numbers = problem.devices[c].numbers;
        int number = numbers.empty() ? d : numbers[d];
        bool used = problem.devices[c].host;
        for (const PartitionStage& stage : best.stages)
          used = used || std::count(stage.numbers.begin(), stage.numbers.end(), number);
        if (!used) idle[static_cast<int>(c)].push_back(number);
      }
    for (size_t s = 0; s < best.stages.size(); ++s) {
      if (problem.devices[best.stages[s].device_class].host) continue;
      for (size_t i = 0; i < best.stages[s].numbers.size(); ++i) {
        for (int number : idle[best.stages[s].device_class]) {
          PartitionResult changed = best;
          changed.stages[s].numbers[i] = number;
          if (Better(changed)) return true;
        }
        for (size_t t = s + 1; t < best.stages.size(); ++t) {
          if (!Alike(best.stages[s], best.stages[t])) continue;
          for (size_t j = 0; j < best.stages[t].numbers.size(); ++j) {
            if (evaluations < 0) return false;
            PartitionResult changed = best;
            std::swap(changed.stages[s].numbers[i], changed.stages[t].numbers[j]);
            if (Better(changed)) return true;
          }
        }
      }
    }
    return false;
  }

  // A unit out of the slowest stage, or into it.
  bool MoveUnit() {
    std::vector<int> stage_of(problem.nodes.size(), 0);
    int slowest = 0, count = static_cast<int>(best.stages.size());
    for (int s = 0; s < count; ++s) {
      for (int node : best.stages[s].nodes) stage_of[node] = s;
      if (best.stages[s].Load() > best.stages[slowest].Load()) slowest = s;
    }
    auto at = [&](int unit) { return stage_of[graph.units[unit].nodes[0]]; };
    for (size_t u = 0; u < graph.units.size(); ++u) {
      const std::vector<int>& nodes = graph.units[u].nodes;
      int from = at(static_cast<int>(u)), low = 0, high = count - 1;
      for (int before : graph.previous[u]) low = std::max(low, at(before));
      for (int after : graph.next[u]) high = std::min(high, at(after));
      if (best.stages[from].nodes.size() == nodes.size()) continue;
      for (int to = low; to <= high; ++to) {
        if (to == from || (from != slowest && to != slowest)) continue;
        if (evaluations < 0) return false;
        PartitionResult changed = best;
        auto& source = changed.stages[from].nodes;
        auto& target = changed.stages[to].nodes;
        std::erase_if(
            source, [&](int node) { return std::binary_search(nodes.begin(), nodes.end(), node); });
        target.insert(target.end(), nodes.begin(), nodes.end());
        std::sort(target.begin(), target.end());
        if (Better(changed)) return true;
      }
    }
    return false;
  }

  void Run() {
    while (evaluations > 0 && (ExchangeDevices() || MoveUnit())) continue;
  }
};

}  // namespace

// Every bandwidth, ascending.
static std::vector<double> Links(const PartitionProblem& problem) {
  std::vector<double> links;
  for (size_t a = 0; a < problem.pair_links.size(); ++a)
    for (size_t b = 0; b < problem.pair_links.size(); ++b)
      if (a != b) links.push_back(problem.pair_links[a][b]);
  std::sort(links.begin(), links.end());
  return links;
}

PartitionResult SolvePairLinks(const PartitionProblem& problem, const SolveOptions& options) {
  PartitionProblem relaxed = problem;
  relaxed.pair_links.clear();
  std::vector<double> links = Links(problem);
  UnitGraph graph = BuildUnits(problem, ExactMerge(problem));
  int64_t cost = static_cast<int64_t>(problem.nodes.size() + problem.values.size()) + 1;
  PartitionResult best, bound = SolvePartition(relaxed, options);
  if (!bound.feasible) return bound;
  // Fewer stages may do without the slow links.
  int devices = 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  std::vector<int> counts = {-1};
  if (problem.stages < 0)
    for (int k = 1; k <= std::min(devices, 8); ++k) counts.push_back(k);
  SolveOptions quick = options;
  quick.exact = options.exact && graph.units.size() <= 200;
  for (int stages : counts)
    for (double link : {kInfinity, links[links.size() / 2], links[0]}) {
      PartitionProblem equal = relaxed;
      if (stages > 0) equal.stages = stages;
      for (DeviceClass& device : equal.devices) device.link = std::min(device.link, link);
      bool first = stages < 0 && link == kInfinity;
      PartitionResult result = first ? bound : SolvePartition(equal, quick);
      if (!result.feasible) continue;
      for (PartitionStage& stage : result.stages) stage.numbers.clear();
      EvaluatePartition(problem, result);
      Search search{problem, graph, result, 30'000'000 / cost};
      search.Run();
      if (!best.feasible || search.best.objective < best.objective) best = search.best;
      if (best.objective <= bound.lower_bound * (1 + 1e-12)) break;
    }
  if (!best.feasible) return bound;
  best.lower_bound = bound.lower_bound;
  best.proven = best.objective <= best.lower_bound * (1 + 1e-12);
  if (!best.proven && SearchPairLinks(problem, graph, {}, kWholeSearch / cost, best)) {
    best.proven = true;
    best.lower_bound = best.objective;
  }
  best.sets = bound.sets;
  return best;
}

PartitionResult NextBestPairLinks(const PartitionProblem& problem, const UnitGraph& graph,
                                  const std::vector<int>& forbidden, ExactOptions exact) {
  PartitionProblem equal = problem;
  equal.pair_links.clear();
  std::vector<double> links = Links(problem);
  int64_t cost = static_cast<int64_t>(problem.nodes.size() + problem.values.size()) + 1;
  exact.forbidden = forbidden;
  PartitionResult best;
  bool bounded = false;
  for (double link : {kInfinity, links[links.size() / 2], links[0]}) {
    for (DeviceClass& device : equal.devices) device.link = std::min(device.link, link);
    PartitionResult result = ExactPartition(equal, graph, exact);
    if (link == kInfinity) {
      bounded = result.proven;
      best.lower_bound = result.feasible ? result.objective : kInfinity;
      best.proven = bounded && !result.feasible;
    }
    if (!result.feasible) continue;
    for (PartitionStage& stage : result.stages) stage.numbers.clear();
    EvaluatePartition(problem, result);
    Search search{problem, graph, result, 10'000'000 / cost, forbidden};
    search.Run();
    if (best.feasible && search.best.objective >= best.objective) continue;
    search.best.lower_bound = best.lower_bound;
    best = search.best;
    best.proven = bounded && best.objective <= best.lower_bound * (1 + 1e-12);
  }
  if (best.feasible && !best.proven)
    best.proven = SearchPairLinks(problem, graph, forbidden, kWholeSearch / cost, best);
  return best;
}

}  // namespace pipewright
