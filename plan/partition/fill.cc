#include "plan/partition/fill.h"

#include <algorithm>

#include "plan/partition/bits.h"
#include "plan/partition/stage_load.h"

namespace pipewright {

namespace {

constexpr int kLooks = 500;  // units tried for the next stage of one filling

struct Filling {
  Bits placed;
  int from = -1;           // the filling before its last stage
  std::vector<int> units;  // of its last stage
  size_t count = 0;        // of units that are placed
  double work = 0;         // of those
  double value = 0;        // what it is kept for: the work, less what cuts have yet to cost
};

struct Fill {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const FillOptions& options;
  int64_t& steps;
  const std::vector<std::vector<int>>&before, &after;
  StageLoad stage;
  std::vector<Filling> all{};          // every filling that was kept
  std::vector<Filling> found{};        // those with one stage more
  std::vector<int> ready{}, chosen{};  // of the stage that is being filled
  std::vector<int> waiting{};          // of each unit: those before it that are not placed
  std::vector<int> placed_in{};        // of each net: units in the stages before
  double least = 0;                    // value of what is not worth a place in `found`
  double total = 0;

  void Start(const Filling& filling) {
    ready.clear();
    placed_in.assign(graph.nets.size(), 0);
    waiting.assign(graph.units.size(), 0);
    for (int u = 0; u < static_cast<int>(graph.units.size()); ++u) {
      if (Has(filling.placed, u)) {
        for (int net : graph.nets_of[u]) ++placed_in[net];
        continue;
      }
      for (int other : before[u]) waiting[u] += !Has(filling.placed, other);
      if (waiting[u] == 0) ready.push_back(u);
    }
    std::stable_sort(ready.begin(), ready.end(), [&](int a, int b) {
      return graph.units[a].device_time > graph.units[b].device_time;
    });
    steps -= 2 * GraphSize(graph);
  }

  // Cuts that the rest has yet to pay for, more than before the stage.
  double Leaving() const {
    double cut = 0;
    for (int u : chosen)
      for (int n : graph.nets_of[u]) {
        const Net& net = graph.nets[n];
        int size = static_cast<int>(net.units.size()), inside = stage.inside[n];
        double time = (net.time + net.transfers * problem.transfer_latency) / inside;
        if (placed_in[n] + inside < size) cut += time;
        if (placed_in[n] > 0) cut -= time;
      }
    return cut;
  }

  // Whether the rest can still be done, and a place among the best.
  void Offer(int from, double value_before, int stages_left) {
    const int behind = options.from_end ? options.stages - 1 - stages_left : stages_left;
    if (stage.Load({0, 1}, behind) > options.most) return;
    double work = all[from].work + stage.device_time;
    if (total - work > stages_left * options.most * (1 + 1e-9)) return;
    double count = static_cast<double>(chosen.size()) * options.small * options.most;
    double value = value_before + stage.device_time - count - Leaving();
    if (found.size() == 4 * options.kept) Trim();
    if (value <= least) return;
    Filling filling{all[from].placed, from, chosen, all[from].count + chosen.size(), work, value};
    for (int u : chosen) Insert(filling.placed, u);
    found.push_back(filling);
  }

  // The best of those found, each set of units once.
  void Trim() {
    std::stable_sort(found.begin(), found.end(),
                     [](const Filling& a, const Filling& b) { return a.value > b.value; });
    size_t kept = 0;
    for (size_t i = 0; i < found.size() && kept < options.kept; ++i) {
      bool known = false;
      for (size_t j = 0; j < kept && !known; ++j) known = found[j].placed == found[i].placed;
      if (known) continue;
      if (kept != i) found[kept] = std::move(found[i]);
      ++kept;
    }
    found.resize(kept);
    if (kept == options.kept) least = found.back().value;
  }

  void Add(int unit) {
    stage.Add(unit);
    chosen.push_back(unit);
    for (int v : after[unit])
      if (--waiting[v] == 0) ready.push_back(v);
    steps -= 4 + static_cast<int64_t>(graph.nets_of[unit].size() + after[unit].size());
  }

  void RemoveLast() {
    for (int v : after[chosen.back()]) ++waiting[v];
    stage.Remove(chosen.back());
    chosen.pop_back();
  }

  // Sets of units that can be the next stage, each once: units are taken in the order in which they
  // became ready.
  void NextStages(int from, int stages_left) {
    Start(all[from]);
    double value = all[from].value;
    struct Choice {
      size_t next, ready;  // the first that may be taken; how many were ready before
    };
    std::vector<Choice> stack = {{0, ready.size()}};
    for (int looks = kLooks; !stack.empty();) {
      size_t next = stack.back().next;
      if (looks <= 0 || next == ready.size()) {
        ready.resize(stack.back().ready);
        if (stack.size() > 1) RemoveLast();
        stack.pop_back();
        continue;
      }
      ++stack.back().next;
      int unit = ready[next];
      if (stage.device_time + graph.units[unit].device_time > options.most) continue;
      --looks;
      stack.push_back({next + 1, ready.size()});
      Add(unit);
      Offer(from, value, stages_left);
    }
    stage.Reset();
  }

  std::vector<int> Run() {
    for (const Unit& unit : graph.units) total += unit.device_time;
    all.push_back({MakeBits(static_cast<int>(graph.units.size())), -1, {}, 0, 0, 0});
    size_t begin = 0;
    for (int stage_left = options.stages; stage_left-- > 0 && steps > 0;) {
      size_t end = all.size();
      found.clear();
      least = -kInfinity;
      for (size_t f = begin; f < end; ++f) NextStages(static_cast<int>(f), stage_left);
      Trim();
      if (found.empty()) return {};
      begin = end;
      all.insert(all.end(), found.begin(), found.end());
      for (size_t f = begin; f < all.size(); ++f)
        if (all[f].count == graph.units.size()) return Order(static_cast<int>(f));
    }
    return {};
  }

  std::vector<int> Order(int filling) const {
    std::vector<std::vector<int>> stages;
    for (; filling > 0; filling = all[filling].from) stages.push_back(all[filling].units);
    if (!options.from_end) std::reverse(stages.begin(), stages.end());
    std::vector<int> order;
    for (std::vector<int>& units : stages) {
      std::sort(units.begin(), units.end());  // a topological order
      order.insert(order.end(), units.begin(), units.end());
    }
    return order;
  }
};

}  // namespace

std::vector<int> FilledOrder(const PartitionProblem& problem, const UnitGraph& graph,
                             const FillOptions& options, int64_t& steps) {
  const auto& before = options.from_end ? graph.next : graph.previous;
  const auto& after = options.from_end ? graph.previous : graph.next;
  return Fill{problem, graph, options, steps, before, after, StageLoad(problem, graph)}.Run();
}

}  // namespace pipewright
