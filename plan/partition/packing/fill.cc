#include "plan/partition/packing/fill.h"

#include <algorithm>

#include "plan/partition/problem/stage_load.h"
#include "plan/partition/problem/unit_set.h"

namespace pipewright {

namespace {

constexpr int kLooks = 500;  // units tried for a filling's next stage, or more if there are few
constexpr double kMemoryWeight = 0.3;  // a stage full of memory, to one full of work

struct FillOptions {
  double most = kInfinity;  // load of a stage
  bool from_end = false;    // the last stage is filled first
  // A unit counts so much less than its work, as a share of `most`: more of it fills stages with
  // the large units first, which are hard to place later.
  double small = 0;
  size_t kept = 12;  // fillings after each stage
};

// Devices that are alike, by speed.
struct Kind {
  int device_class;
  double speed, bytes;
};

struct Filling {
  Bits placed;
  std::vector<int> devices;  // that are left, of each kind
  int kind = -1;             // of the last stage's device
  int from = -1;           // the filling before its last stage
  std::vector<int> units;  // of its last stage
  size_t count = 0;        // of units that are placed
  double work = 0;         // of those
  double able = 0;         // what the devices that are left could do
  double static_bytes = 0, stash_bytes = 0;
  double done = 0;   // the work, less what its devices could do and what cuts have yet to cost
  double value = 0;  // what it is kept for: that, and the memory which the rest no longer needs
};

struct Fill {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const FillOptions& options;
  const int stages;  // at most
  const std::vector<Kind>& kinds;
  int64_t& steps;
  const std::vector<std::vector<int>>&before, &after;
  StageLoad stage;
  double most_work = 0, most_bytes = 0;  // of the stage that is being filled, on any device left
  std::vector<Filling> all{};          // every filling that was kept
  std::vector<Filling> found{};        // those with one stage more
  std::vector<int> ready{}, chosen{};  // of the stage that is being filled
  std::vector<int> waiting{};          // of each unit: those before it that are not placed
  std::vector<int> placed_in{};        // of each net: units in the stages before
  double least = 0;                    // value of what is not worth a place in `found`
  double total = 0;
  double least_bytes = kInfinity;  // of the devices
  double held_later = 0;  // microbatches in flight, on average of the stages to be filled later

  void Start(const Filling& filling) {
    most_work = most_bytes = 0;
    for (size_t k = 0; k < kinds.size(); ++k) {
      if (filling.devices[k] == 0) continue;
      most_work = std::max(most_work, options.most * kinds[k].speed);
      most_bytes = std::max(most_bytes, kinds[k].bytes * (1 + 1e-12));
    }
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
    return options.from_end ? stages - 1 - stages_left : stages_left;
  }

  // Says whether the stage can take the unit's work and, but for buffers, its memory.
  bool HasRoom(const Unit& unit, int stages_left) const {
    int held = InFlightCount(problem, 1, Behind(stages_left));
    double bytes = stage.static_bytes + unit.static_bytes +
                   (stage.stash_bytes + unit.stash_bytes) * held;
    return stage.device_time + unit.device_time <= most_work && bytes <= most_bytes;
  }

  // The slowest kind of those left that takes the stage; -1: none does.
  int FindDevice(const Filling& filling, int stages_left) const {
    size_t first = std::partition_point(kinds.begin(), kinds.end(), [&](const Kind& kind) {
      return stage.device_time > options.most * kind.speed;
    }) - kinds.begin();
    for (size_t k = first; k < kinds.size(); ++k)
      if (filling.devices[k] > 0 &&
          stage.Load({kinds[k].device_class, 1}, Behind(stages_left)) <= options.most)
        return static_cast<int>(k);
    return -1;
  }

  // Keeps the stage if the rest can still be done and it is among the best.
  void Offer(int from, int stages_left) {
    const Filling& before_it = all[from];
    const int kind = FindDevice(before_it, stages_left);
    if (kind < 0) return;
    double work = before_it.work + stage.device_time, able = options.most * kinds[kind].speed;
    if (total - work > (before_it.able - able) * (1 + 1e-9)) return;
    double count = static_cast<double>(chosen.size()) * options.small * options.most;
    double done = before_it.done + stage.device_time - able - count - Leaving();
    double statics = before_it.static_bytes + stage.static_bytes;
    double stashes = before_it.stash_bytes + stage.stash_bytes;
    double value = done + MemoryValue(statics, stashes);
    if (found.size() == 4 * options.kept) Trim();
    if (value <= least) return;
    Filling filling{before_it.placed, before_it.devices, kind, from, chosen,
                    before_it.count + chosen.size(), work, before_it.able - able, statics, stashes,
                    done, value};
    --filling.devices[kind];
    for (int u : chosen) Insert(filling.placed, u);
    found.push_back(filling);
  }

  // Returns what the units would take of the stages' memory later, as work: it need not be there
  // then.
  double MemoryValue(double statics, double stashes) const {
    return kMemoryWeight * options.most * (statics + stashes * held_later) / least_bytes;
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

  // The fullest filling.
  StagedUnits Run(const std::vector<int>& devices) {
    for (const Unit& unit : graph.units) total += unit.device_time;
    Filling empty;
    empty.placed = MakeBits(static_cast<int>(graph.units.size()));
    empty.devices = devices;
    for (size_t k = 0; k < kinds.size(); ++k) {
      empty.able += devices[k] * kinds[k].speed * options.most;
      least_bytes = std::min(least_bytes, kinds[k].bytes);
    }
    all.push_back(empty);
    size_t begin = 0;
    int last = 0;
    for (int stage_left = stages; stage_left-- > 0 && steps > 0;) {
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

  StagedUnits Stages(int filling) const {
    StagedUnits units{{}, std::vector<int>(graph.units.size(), -1)};
    std::vector<int> filled;
    for (int f = filling; f > 0; f = all[f].from) filled.push_back(f);
    if (!options.from_end) std::reverse(filled.begin(), filled.end());
    for (int f : filled) {
      for (int u : all[f].units) units.stage_of[u] = static_cast<int>(units.options.size());
      units.options.push_back({kinds[all[f].kind].device_class, 1});
    }
    return units;
  }
};

}  // namespace

std::vector<StageOption> FastestDevices(const PartitionProblem& problem, int units) {
  std::vector<StageOption> devices;
  for (size_t c = 0; c < problem.devices.size(); ++c)
    if (!problem.devices[c].host)
      devices.insert(devices.end(), problem.devices[c].count, {static_cast<int>(c), 1});
  std::stable_sort(devices.begin(), devices.end(), [&](const StageOption& a, const StageOption& b) {
    return problem.devices[a.device_class].speed > problem.devices[b.device_class].speed;
  });
  size_t most = problem.stages > 0 ? std::min(problem.stages, units) : units;
  if (devices.size() > most) devices.resize(most);
  return devices;
}

StagedUnits FilledStages(const PartitionProblem& problem, const UnitGraph& graph, double most,
                         size_t kept, int64_t& steps) {
  std::vector<StageOption> devices =
      FastestDevices(problem, static_cast<int>(graph.units.size()));
  std::reverse(devices.begin(), devices.end());
  std::vector<Kind> kinds;
  std::vector<int> counts;
  for (const StageOption& option : devices) {
    const DeviceClass& device = problem.devices[option.device_class];
    if (kinds.empty() || kinds.back().device_class != option.device_class) {
      kinds.push_back({option.device_class, device.speed, device.memory_bytes});
      counts.push_back(0);
    }
    ++counts.back();
  }
  StagedUnits best;
  size_t unfilled = SIZE_MAX;
  for (double small : {0.01, 0.0, 0.02})
    for (bool from_end : {false, true}) {
      if (steps <= 0 || unfilled == 0) return best;
      const auto& before = from_end ? graph.next : graph.previous;
      const auto& after = from_end ? graph.previous : graph.next;
      FillOptions options{most, from_end, small, kept};
      Fill fill{problem, graph, options, static_cast<int>(devices.size()), kinds, steps,
                before,  after, StageLoad(problem, graph)};
      StagedUnits units = fill.Run(counts);
      size_t left = std::count(units.stage_of.begin(), units.stage_of.end(), -1);
      if (left < unfilled) unfilled = left, best = units;
    }
  return best;
}

}  // namespace pipewright
