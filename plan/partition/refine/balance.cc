#include "plan/partition/refine/balance.h"

#include <algorithm>

namespace pipewright {

namespace {

constexpr size_t kSwapUnits = 128;  // units of a stage that are considered for exchanges

struct Balance {
  const UnitGraph& graph;
  StageTable& table;
  double sum_weight;
  int64_t& steps;
  std::vector<std::vector<int>> members{};  // by stage
  std::vector<int> place{};                 // by unit: its index in `members`
  std::vector<int> stays{};                 // by unit: the turn until which it does not move
  std::vector<int> targets{};               // stages that a unit may go to
  double target = 0, largest = 0, tiny = 0;
  PartitionState best{};

  struct Step {
    double value = kInfinity, change = 0;  // change: of AllOver
    int unit = -1, to = -1;
  };

  // The changes of both stages if a unit moves to another one.
  struct Shift {
    int unit;
    StageTable::Gain here, there;
  };

  static StageTable::Gain Sum(const StageTable::Gain& a, const StageTable::Gain& b) {
    return {a.time + b.time, a.bytes + b.bytes};
  }

  double Over(double load) const { return std::max(load - target, 0.0); }

  double AllOver() const {
    double sum = 0;
    for (int s = 0; s < table.stages(); ++s) sum += Over(table.load(s));
    return sum;
  }

  void Move(int unit, int to) {
    int from = table.units().stage_of[unit];
    int last = members[from].back();
    members[from][place[unit]] = last;
    place[last] = place[unit];
    members[from].pop_back();
    place[unit] = static_cast<int>(members[to].size());
    members[to].push_back(unit);
    table.Move(unit, to);
  }

  // Finds the stages to try: those of the unit's neighbors, those next to its own, and the one with
  // the least load. In all others it would cost no less.
  void FindTargets(int unit) {
    auto [low, high] = table.Range(unit);
    targets.clear();
    if (low == high) return;
    int from = table.units().stage_of[unit], least = -1;
    for (int s = low; s <= high; ++s)
      if (s != from && (least < 0 || table.load(s) < table.load(least))) least = s;
    steps -= (high - low) / 8;
    for (int to : {low, high, from - 1, from + 1, least})
      if (to >= low && to <= high && to != from) targets.push_back(to);
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  }

  Step BestMove(int stage, int turn, double over, double best_over) {
    Step found;
    if (members[stage].size() < 2) return found;
    for (int unit : members[stage]) {
      FindTargets(unit);
      if (targets.empty()) continue;
      steps -= table.LookAt(unit);
      double left = table.LoadWithout();
      for (int to : targets) {
        steps -= kLookSteps;
        double right = table.LoadWith(to);
        if (left == kInfinity || right == kInfinity) continue;
        double before = table.load(stage) + table.load(to);
        double change = Over(left) + Over(right) - Over(table.load(stage)) - Over(table.load(to));
        if (stays[unit] > turn && over + change >= best_over - tiny) continue;
        double value = change + sum_weight * (left + right - before);
        if (value < found.value) found = {value, change, unit, to};
      }
    }
    return found;
  }

  std::vector<Shift> Shifts(int from, int to) {
    std::vector<Shift> shifts;
    size_t stride = members[from].size() / kSwapUnits + 1;
    for (size_t i = 0; i < members[from].size(); i += stride) {
      int unit = members[from][i];
      auto [low, high] = table.Range(unit);
      if (to < low || to > high) continue;
      steps -= table.LookAt(unit) + kLookSteps;
      StageTable::Gain left = table.GainWithout(), right = table.GainWith(to);
      if (left.time == kInfinity || right.time == kInfinity) continue;
      shifts.push_back({unit, left, right});
    }
    return shifts;
  }

  // Exchanges a unit of the stage for one of another if that lowers AllOver.
  bool Exchange(int stage, int turn) {
    struct Swap {
      double change;
      int out, in, other;
      bool operator<(const Swap& swap) const { return change < swap.change; }
    };
    std::vector<Swap> swaps;
    for (int other = 0; other < table.stages() && steps > 0; ++other) {
      if (other == stage) continue;
      std::vector<Shift> out = Shifts(stage, other);
      if (out.empty()) continue;
      std::vector<Shift> in = Shifts(other, stage);
      double load = table.load(stage), room = table.load(other);
      double over = Over(load) + Over(room);
      Swap found{-tiny, -1, -1, other};
      for (const Shift& a : out)
        for (const Shift& b : in) {
          double here = table.LoadAfter(stage, Sum(a.here, b.there));
          double there = table.LoadAfter(other, Sum(a.there, b.here));
          double change =
              Over(here) + Over(there) - over + sum_weight * (here + there - load - room);
          if (change < found.change) found = {change, a.unit, b.unit, other};
        }
      steps -= static_cast<int64_t>(out.size() * in.size()) / 8;
      if (found.out >= 0) swaps.push_back(found);
    }
    std::stable_sort(swaps.begin(), swaps.end());
    for (size_t i = 0; i < swaps.size() && i < 8; ++i) {
      const Swap& swap = swaps[i];
      double before = Over(table.load(stage)) + Over(table.load(swap.other));
      Move(swap.out, swap.other);
      auto [low, high] = table.Range(swap.in);
      if (stage >= low && stage <= high) {
        Move(swap.in, stage);
        if (Over(table.load(stage)) + Over(table.load(swap.other)) < before - tiny) {
          stays[swap.in] = stays[swap.out] = turn + 8;
          return true;
        }
        Move(swap.in, swap.other);
      }
      Move(swap.out, stage);
    }
    return false;
  }

  // Moves units out of stages over the target, the best move first, even if other stages then
  // exceed it. A unit that has moved stays for some turns. Returns true if the target is reached.
  bool Reach() {
    stays.assign(graph.units.size(), 0);
    double over = AllOver(), best_over = over;
    int max_idle_turns = 60 + 2 * table.stages();
    for (int turn = 1, idle = 0; over > tiny && idle < max_idle_turns && steps > 0;
         ++turn, ++idle) {
      int stage = 0;
      for (int s = 1; s < table.stages(); ++s)
        if (table.load(s) > table.load(stage)) stage = s;
      Step step = BestMove(stage, turn, over, best_over);
      if (step.change < -tiny || !Exchange(stage, turn)) {
        if (step.unit < 0) return false;
        stays[step.unit] = turn + 8 + turn % 7;
        Move(step.unit, step.to);
      }
      over = AllOver();
      if (over >= best_over - tiny) continue;
      best_over = over;
      idle = 0;
      if (table.LargestLoad() < largest - tiny) largest = table.LargestLoad(), best = table.units();
    }
    return over <= tiny;
  }

  bool Run() {
    // A stage that exceeds its memory counts as worse than the slowest stage, and as more than four
    // times as slow if no partition that fits is known.
    const double start = table.LargestLoad();
    const double short_load = start < kInfinity ? start : 4 * table.LargestTime();
    if (!(short_load > 0) || short_load == kInfinity) return false;
    table.SoftenMemory(short_load);
    largest = table.LargestLoad();
    if (largest == kInfinity) return false;
    tiny = 1e-12 * largest;
    best = table.units();
    int stages = table.stages();
    members.resize(stages), place.resize(graph.units.size());
    for (size_t u = 0; u < graph.units.size(); ++u) {
      auto& list = members[best.stage_of[u]];
      place[u] = static_cast<int>(list.size());
      list.push_back(static_cast<int>(u));
    }
    double low = 0;  // the largest target that was not reached; at first the mean load
    for (int s = 0; s < stages; ++s) low += table.load(s) / stages;
    while (largest - low > 5e-4 * largest && steps > 0) {
      target = (low + largest) / 2;
      if (!Reach()) low = target;
      for (size_t u = 0; u < graph.units.size(); ++u)
        if (table.units().stage_of[u] != best.stage_of[u])
          Move(static_cast<int>(u), best.stage_of[u]);
      largest = std::min(largest, table.LargestLoad());
    }
    table.SoftenMemory(kInfinity);
    return largest < std::min(start, short_load) - tiny;
  }
};

}  // namespace

bool BalanceLoads(const UnitGraph& graph, StageTable& table, double sum_weight, int64_t& steps) {
  return table.stages() > 1 && Balance{graph, table, sum_weight, steps}.Run();
}

}  // namespace pipewright
