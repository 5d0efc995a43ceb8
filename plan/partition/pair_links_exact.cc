#include "plan/partition/pair_links_exact.h"

#include <algorithm>

#include "plan/partition/exact/ideals.h"

namespace pipewright {

namespace {

// Places stages one after the other from the start of the pipeline. The remaining nodes are on an
// extra device with the best link to every other one, so that the loads of the placed stages are
// lower bounds.
struct Placement {
  const PartitionProblem& problem;
  const Ideals& ideals;
  const std::vector<int>& forbidden;
  int64_t evaluations;
  PartitionResult& known;
  PartitionProblem open{};                     // the problem with the extra device
  std::vector<std::pair<int, int>> devices{};  // class and number
  std::vector<std::vector<int>> nodes{};       // by unit
  std::vector<char> used{};
  PartitionResult placed{};

  void OpenDevice() {
    open = problem;
    size_t count = problem.pair_links.size();
    double best = 0;
    for (size_t a = 0; a < count; ++a)
      for (size_t b = 0; b < count; ++b)
        if (a != b) best = std::max(best, problem.pair_links[a][b]);
    for (auto& row : open.pair_links) row.push_back(best);
    open.pair_links.emplace_back(count + 1, best);
    DeviceClass rest;
    rest.numbers = {static_cast<int>(count)};
    rest.link = best;
    open.devices.push_back(rest);
    for (size_t c = 0; c < problem.devices.size(); ++c)
      for (int d = 0; d < problem.devices[c].count; ++d) {
        const std::vector<int>& numbers = problem.devices[c].numbers;
        devices.push_back({static_cast<int>(c), numbers.empty() ? d : numbers[d]});
      }
    used.assign(devices.size(), 0);
  }

  std::vector<int> NodesBetween(int larger, int smaller) const {
    std::vector<int> found;
    ForEach(ideals.sets[larger], [&](int unit) {
      if (smaller >= 0 && Has(ideals.sets[smaller], unit)) return;
      found.insert(found.end(), nodes[unit].begin(), nodes[unit].end());
    });
    std::sort(found.begin(), found.end());
    return found;
  }

  // Returns a lower bound on the largest load of the placed stages.
  double Load(int rest) {
    --evaluations;
    PartitionResult partial = placed;
    size_t count = partial.stages.size();
    if (rest > 0) {
      partial.stages.emplace_back();
      partial.stages.back().device_class = static_cast<int>(problem.devices.size());
      partial.stages.back().numbers = open.devices.back().numbers;
      partial.stages.back().nodes = NodesBetween(rest, -1);
    }
    EvaluatePartition(open, partial);
    double load = 0;
    for (size_t s = 0; s < count; ++s) load = std::max(load, partial.stages[s].Load());
    return load;
  }

  void Keep() {
    PartitionResult whole = placed;
    EvaluatePartition(problem, whole);
    if (!CheckPartition(problem, whole).empty()) return;
    whole.feasible = true;
    known = whole;
  }

  // Tries every next stage out of the units of `set`. Recursion is as deep as there are devices.
  void Place(int set) {
    size_t count = placed.stages.size();
    bool last = problem.stages >= 0 ? static_cast<int>(count) + 1 == problem.stages
                                    : count + 1 == devices.size();
    std::vector<char> seen(ideals.sets.size(), 0);
    std::vector<int> stack = {set};
    while (!stack.empty() && evaluations > 0) {
      int larger = stack.back();
      stack.pop_back();
      for (int i = ideals.first[larger]; i < ideals.first[larger + 1]; ++i) {
        int rest = ideals.smaller[i].set;
        if (seen[rest]) continue;
        seen[rest] = 1;
        --evaluations;
        stack.push_back(rest);
        if (last ? rest != 0 : rest == 0 && problem.stages >= 0) continue;
        std::vector<int> stage = NodesBetween(set, rest);
        if (stage == forbidden) continue;
        for (size_t d = 0; d < devices.size() && evaluations > 0; ++d) {
          if (used[d]) continue;
          used[d] = 1;
          placed.stages.emplace_back();
          placed.stages.back().nodes = stage;
          placed.stages.back().device_class = devices[d].first;
          placed.stages.back().numbers = {devices[d].second};
          if (Load(rest) < known.objective * (1 - 1e-9)) {
            if (rest == 0)
              Keep();
            else
              Place(rest);
          }
          placed.stages.pop_back();
          used[d] = 0;
        }
      }
    }
  }
};

}  // namespace

bool SearchPairLinks(const PartitionProblem& problem, const UnitGraph& graph,
                     const std::vector<int>& forbidden, int64_t evaluations,
                     PartitionResult& known) {
  int devices = 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  if (problem.max_replicas > 1 || devices > 16) return false;
  Ideals ideals;
  if (!EnumerateIdeals(graph, 2'000, kInfinity, ideals)) return false;
  Placement search{problem, ideals, forbidden, evaluations, known};
  search.OpenDevice();
  for (const Unit& unit : graph.units) search.nodes.push_back(unit.nodes);
  search.Place(static_cast<int>(ideals.sets.size()) - 1);
  return search.evaluations > 0;
}

}  // namespace pipewright
