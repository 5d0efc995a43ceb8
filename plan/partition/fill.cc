#include "plan/partition/fill.h"

#include <algorithm>

#include "plan/partition/bits.h"
#include "plan/partition/stage_load.h"

namespace pipewright {

namespace {

constexpr int kLooks = 500;  // units tried for a filling's next stage, or more if there are few
constexpr double kMemoryWeight = 0.3;  // a stage full of memory, to one full of work

struct Filling {
  Bits placed;
  int from = -1;           // the filling before its last stage
  std::vector<int> units;  // of its last stage
  size_t count = 0;        // of units that are placed
  double work = 0;         // of those
  double static_bytes = 0, stash_bytes = 0;
  double done = 0;   // the work, less what cuts have yet to cost
  double value = 0;  // what it is kept for: that, and the memory which the rest no longer needs
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
  double held_later = 0;  // microbatches in flight, on average of the stages to be filled later

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

  int Behind(int stages_left) const {
    return options.from_end ? options.stages - 1 - stages_left : stages_left;
  }

  // Whether the stage can take the unit's work and, but for buffers, its memory.
  bool HasRoom(const Unit& unit, int stages_left) const {
    int held = InFlightCount(problem, 1, Behind(stages_left));
    double bytes = stage.static_bytes + unit.static_bytes +
                   (stage.stash_bytes + unit.stash_bytes) * held;
    return stage.device_time + unit.device_time <= options.most &&
           bytes <= problem.devices[0].memory_bytes * (1 + 1e-12);
  }

  // Whether the rest can still be done, and a place among the best.
  void Offer(int from, int stages_left) {
    if (stage.Load({0, 1}, Behind(stages_left)) > options.most) return;
    double work = all[from].work + stage.device_time;
    if (total - work > stages_left * options.most * (1 + 1e-9)) return;
    double count = static_cast<double>(chosen.size()) * options.small * options.most;
    const Filling& before_it = all[from];
    double done = before_it.done + stage.device_time - count - Leaving();
    double statics = before_it.static_bytes + stage.static_bytes;
    double stashes = before_it.stash_bytes + stage.stash_bytes;
    double value = done + MemoryValue(statics, stashes);
    if (found.size() == 4 * options.kept) Trim();
    if (value <= least) return;
    Filling filling{before_it.placed, from, chosen, before_it.count + chosen.size(), work,
                    statics, stashes, done, value};
    for (int u : chosen) Insert(filling.placed, u);
    found.push_back(filling);
  }

  // What the units would take of the stages' memory later, as work: it need not be there then.
  double MemoryValue(double statics, double stashes) const {
    return kMemoryWeight * options.most * (statics + stashes * held_later) /
           problem.devices[0].memory_bytes;
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

  int Looks() const {
    return kLooks * std::clamp(150 / static_cast<int>(graph.units.size()), 1, 4);
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
    struct Choice {
      size_t next, ready;  // the first that may be taken; how many were ready before
    };
    std::vector<Choice> stack = {{0, ready.size()}};
    for (int looks = Looks(); !stack.empty();) {
      size_t next = stack.back().next;
      if (looks <= 0 || next == ready.size()) {
        ready.resize(stack.back().ready);
        if (stack.size() > 1) RemoveLast();
        stack.pop_back();
        continue;
      }
      ++stack.back().next;
      int unit = ready[next];
      if (!HasRoom(graph.units[unit], stages_left)) continue;
      --looks;
      stack.push_back({next + 1, ready.size()});
      Add(unit);
      Offer(from, stages_left);
    }
    stage.Reset();
  }

  std::vector<int> Run() {
    for (const Unit& unit : graph.units) total += unit.device_time;
    all.push_back({MakeBits(static_cast<int>(graph.units.size())), -1, {}});
    size_t begin = 0;
    int last = 0;
    for (int stage_left = options.stages; stage_left-- > 0 && steps > 0;) {
      size_t end = all.size();
      found.clear();
      least = -kInfinity;
      held_later = 0;
      for (int later = 0; later < stage_left; ++later)
        held_later += InFlightCount(problem, 1, Behind(later));
      held_later /= std::max(stage_left, 1);
      for (size_t f = begin; f < end; ++f) NextStages(static_cast<int>(f), stage_left);
      Trim();
      if (found.empty()) break;
      begin = end;
      all.insert(all.end(), found.begin(), found.end());
      last = static_cast<int>(begin);
      for (size_t f = begin; f < all.size(); ++f)
        if (all[f].count == graph.units.size()) return Stages(static_cast<int>(f));
    }
    return Stages(last);
  }

  std::vector<int> Stages(int filling) const {
    std::vector<int> stage_of(graph.units.size(), -1);
    int filled = 0;
    for (int f = filling; f > 0; f = all[f].from) ++filled;
    int stage = options.from_end ? options.stages - filled : filled - 1;
    for (; filling > 0; filling = all[filling].from, stage += options.from_end ? 1 : -1)
      for (int u : all[filling].units) stage_of[u] = stage;
    return stage_of;
  }
};

}  // namespace

std::vector<int> FilledStages(const PartitionProblem& problem, const UnitGraph& graph,
                              const FillOptions& options, int64_t& steps) {
  const auto& before = options.from_end ? graph.next : graph.previous;
  const auto& after = options.from_end ? graph.previous : graph.next;
  return Fill{problem, graph, options, steps, before, after, StageLoad(problem, graph)}.Run();
}

}  // namespace pipewright
