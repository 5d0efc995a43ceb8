#include "plan/partition/packing/pack.h"

#include <algorithm>
#include <random>

#include "plan/partition/packing/fill.h"
#include "plan/partition/packing/unit_bins.h"

namespace pipewright {

namespace {

constexpr int kReturns = 5;    // to the best state, at most, while a target is not reached
constexpr int kMoves = 30;     // at random, after each that puts others out
constexpr size_t kPairs = 12;  // of a bin's units, pairs of which are put out

// The devices of the stages to begin with, then those that are left.
std::vector<StageOption> BinsOf(const PartitionProblem& problem, int units,
                                const StagedUnits& start) {
  std::vector<StageOption> bins = start.options;
  std::vector<int> used(problem.devices.size(), 0);
  for (const StageOption& option : bins) ++used[option.device_class];
  for (const StageOption& option : FastestDevices(problem, units))
    if (used[option.device_class]-- <= 0) bins.push_back(option);
  return bins;
}

struct Packer : UnitBins {
  double most = kInfinity;           // load of a stage
  std::vector<int> out{};            // units that are in no bin; the last is placed next
  std::vector<double> hard{};        // of each unit: how often it found no place
  std::vector<char> conflict{};      // of each unit, with the one to be placed
  std::vector<std::pair<int, int>> undo{};  // units that were moved, and where they were
  std::minstd_rand random{1};

  using UnitBins::UnitBins;

  int Pick(size_t count) { return static_cast<int>(random() % count); }

  // Work that keeps to `most`.
  double MostWork(int bin) const {
    return most * problem.devices[options[bin].device_class].speed;
  }

  // Says whether a bin can be a stage with the units that `undo` has moved, and there is an order.
  bool Possible(int bin) {
    bool keeps = members[bin].size() > undo.size() && Load(bin) <= most;
    for (auto [u, was] : undo)
      keeps = keeps && (bin_of[u] < 0 ? !Within(u, bin) : KeepsOrder(u, bin_of[u]));
    return keeps || (sums[bin].Load(problem, options[bin], 0) <= most && Order());
  }

  // Puts the last unit of `out` into the bin with all that lies between, and `first` and `second`
  // out of it. False: that is too much, or closes a cycle; then nothing has changed.
  bool Place(int bin, int first = -1, int second = -1) {
    int unit = out.back();
    FindBetween(unit, bin, first, second);
    undo.clear();
    auto move = [&](int u, int to) {
      undo.push_back({u, bin_of[u]});
      if (bin_of[u] >= 0) Take(u);
      if (to >= 0) Put(u, to);
    };
    for (int u : {first, second})
      if (u >= 0) move(u, -1);
    for (int u : between) move(u, bin);
    move(unit, bin);
    if (!Possible(bin)) {
      std::reverse(undo.begin(), undo.end());
      for (auto [u, was] : undo) {
        if (bin_of[u] >= 0) Take(u);
        if (was >= 0) Put(u, was);
      }
      return false;
    }
    out.erase(std::remove_if(out.begin(), out.end(), [&](int u) { return bin_of[u] >= 0; }),
              out.end());
    for (int u : {first, second})
      if (u >= 0 && bin_of[u] < 0) out.push_back(u);
    return true;
  }

  // Puts the last unit of `out` where it fills a bin best.
  bool Fit() {
    int unit = out.back();
    std::vector<std::pair<double, int>> found;
    steps -= Bins();
    for (int b = 0; b < Bins(); ++b) {
      double with = sums[b].device_time + work[unit], speed = MostWork(b) / most;
      if (with > MostWork(b)) continue;
      FindFar(unit);
      FindBetween(unit, b);
      if (between.empty() && Far(b)) continue;
      double load = between.empty() ? LoadWith(b, unit) : (with + WorkBetween()) / speed;
      if (load <= most) found.push_back({-load, b});
    }
    std::stable_sort(found.begin(), found.end());
    for (auto [load, bin] : found)
      if (Place(bin)) return true;
    return false;
  }

  // These units leave `bin` for another one.
  struct Ejection {
    double cost;
    int bin, first, second;
    // The first of a heap is the cheapest.
    bool operator<(const Ejection& other) const { return cost > other.cost; }
  };

  // Marks members of the bin that cannot be in it together with the unit, whatever comes along, and
  // says how many they are.
  int FindConflicts(int unit, int bin) {
    int count = 0;
    for (int v : members[bin]) {
      conflict[v] = Conflict(unit, bin, v);
      count += conflict[v];
    }
    steps -= static_cast<int64_t>(members[bin].size());
    return count;
  }

  // The moves that make room for the unit, by what they cost.
  std::vector<Ejection> Ejections(int unit) {
    std::vector<Ejection> found;
    const double time = work[unit];
    auto cost = [&](int u) { return hard[u] * (work[u] + 0.1 * time); };
    for (int b = 0; b < Bins(); ++b) {
      const std::vector<int>& list = members[b];
      steps -= 1 + static_cast<int64_t>(list.size() * std::min(list.size(), kPairs)) / 4;
      double with = sums[b].device_time + time, room = MostWork(b);
      double bytes = BinBytes(b) + UnitBytes(unit, b), most_bytes = MostBytes(b);
      for (size_t i = 0; i < list.size(); ++i) {
        double left = with - work[list[i]];
        double bytes_left = bytes - UnitBytes(list[i], b);
        if (left <= room && bytes_left <= most_bytes)
          found.push_back({cost(list[i]), b, list[i], -1});
        for (size_t j = i + 1; j < list.size() && j < kPairs; ++j)
          if (left - work[list[j]] <= room &&
              bytes_left - UnitBytes(list[j], b) <= most_bytes)
            found.push_back({cost(list[i]) + cost(list[j]), b, list[i], list[j]});
      }
    }
    steps -= 4 * static_cast<int64_t>(found.size());
    return found;
  }

  // Puts the last unit of `out` in the place of those that are the easiest to place.
  bool Eject() {
    const int unit = out.back();
    FindPaths();
    std::vector<int> conflicts(Bins(), -1);
    std::vector<Ejection> ejections = Ejections(unit);
    std::make_heap(ejections.begin(), ejections.end());
    for (; !ejections.empty(); ejections.pop_back()) {
      std::pop_heap(ejections.begin(), ejections.end());
      steps -= 12;
      auto [cost, bin, first, second] = ejections.back();
      FindBetween(unit, bin, first, second);
      if (between.empty()) {
        if (conflicts[bin] < 0) conflicts[bin] = FindConflicts(unit, bin);
        if (conflict[first] + (second >= 0 && conflict[second]) < conflicts[bin]) continue;
      } else {
        double left = sums[bin].device_time + work[unit] + WorkBetween();
        for (int u : {first, second})
          if (u >= 0) left -= work[u];
        if (left > MostWork(bin)) continue;
      }
      if (Place(bin, first, second)) return true;
    }
    return false;
  }

  // Moves units at random, or exchanges them.
  void Shuffle() {
    steps -= 2 * kMoves;
    for (int i = 0; i < kMoves; ++i) {
      int unit = Pick(Units()), from = bin_of[unit];
      if (from < 0) continue;
      int other = Pick(Units()), to = bin_of[other];
      if (to < 0 || to == from) continue;
      double a = work[unit], b = work[other];
      double room = MostWork(to) - sums[to].device_time - a;
      if (room >= 0) {
        Take(unit);
        bool fits = LoadWith(to, unit) <= most, keeps = fits && KeepsOrder(unit, to);
        Put(unit, fits ? to : from);
        if (!fits || keeps || Order()) continue;
        Take(unit);
        Put(unit, from);
      } else if (room + b >= 0 && sums[from].device_time + b - a <= MostWork(from)) {
        Take(unit), Take(other);
        Put(unit, to), Put(other, from);
        if (Load(to) <= most && Load(from) <= most) {
          bool shared = members[to].size() > 1 && members[from].size() > 1;
          if ((shared && KeepsOrder(unit, to) && KeepsOrder(other, from)) || Order()) continue;
        }
        Take(unit), Take(other);
        Put(unit, from), Put(other, to);
      }
    }
  }

  // Puts out what is over `target`, the smallest unit that suffices first.
  void Lower(double target) {
    most = target;
    hard.assign(Units(), 1), conflict.assign(Units(), 0);
    for (int b = 0; b < Bins(); ++b)
      while (Load(b) > most && !members[b].empty()) {
        int best = -1;
        double over = (Load(b) - most) * MostWork(b) / most;
        auto better = [&](int u, int v) {
          double a = work[u], c = work[v];
          return (a >= over) != (c >= over) ? a >= over : a >= over ? a < c : a > c;
        };
        for (int u : members[b])
          if (!Within(u, b) && (best < 0 || better(u, best))) best = u;
        Take(best);
      }
    out.clear();
    for (int u = 0; u < Units(); ++u)
      if (bin_of[u] < 0) out.push_back(u);
    Order();
    std::stable_sort(out.begin(), out.end(), [&](int a, int b) {
      return work[a] < work[b];
    });
  }

  // Units that could not be placed have drifted far from the best: it goes back to that, but to
  // other units first.
  void Restore(const std::vector<int>& bins, const std::vector<int>& left) {
    for (int u = 0; u < Units(); ++u)
      if (bin_of[u] >= 0 && bin_of[u] != bins[u]) Take(u);
    for (int u = 0; u < Units(); ++u)
      if (bin_of[u] < 0 && bins[u] >= 0) Put(u, bins[u]);
    out = left;
    std::rotate(out.begin(), out.begin() + Pick(out.size()), out.end());
    Order();
  }

  // Empty where the steps did not suffice.
  StagedUnits Reach(double target) {
    Lower(target);
    std::vector<int> best_bins, best_out;  // where least work was out
    double least = kInfinity;
    const int64_t patience = steps / kReturns;
    int64_t since = steps;
    while (!out.empty() && steps > 0) {
      double left = 0;
      for (int u : out) left += work[u];
      if (left < least) least = left, best_bins = bin_of, best_out = out, since = steps;
      if (since - steps > patience) {
        Restore(best_bins, best_out);
        since = steps;
      }
      steps -= 16 + (Bins() + Units()) / 4;
      if (Fit()) continue;
      ++hard[out.back()];
      if (!Eject()) std::rotate(out.begin(), out.end() - 1, out.end());
      Shuffle();
    }
    StagedUnits units;
    if (!out.empty() || !Order()) return units;
    units.stage_of.resize(Units());
    for (int bin : queue) {
      for (int u : members[bin]) units.stage_of[u] = static_cast<int>(units.options.size());
      units.options.push_back(options[bin]);
    }
    return units;
  }
};

}  // namespace

StagedUnits PackedStages(const PartitionProblem& problem, const UnitGraph& graph, double bound,
                         double below, const StagedUnits& start, int64_t& steps) {
  int units = static_cast<int>(graph.units.size());
  Packer packer(problem, graph, BinsOf(problem, units, start), steps);
  StagedUnits best;
  double largest = 0, fastest = 0;
  for (const Unit& unit : graph.units) largest = std::max(largest, unit.device_time);
  for (const StageOption& bin : packer.options)
    fastest = std::max(fastest, problem.devices[bin.device_class].speed);
  for (int u = 0; u < units && !start.options.empty(); ++u)
    if (start.stage_of[u] >= 0) packer.Put(u, start.stage_of[u]);
  // Takes as much of a share of the steps as suffices.
  auto reach = [&](double target, double share) {
    const auto later = static_cast<int64_t>((1 - share) * static_cast<double>(steps));
    steps -= later;
    StagedUnits packed = packer.Reach(bound * target);
    steps += later;
    if (!packed.options.empty()) best = packed;
    return !packed.options.empty();
  };
  // Stages packed tightly at once turn out best; where that takes too long, they get more room, and
  // less and less again once all units are in one.
  double reached = kInfinity;
  for (double target : {1.01, 1.05, 1.5, 1.2, 1.1, 1.05, 1.03, 1.02, 1.015, 1.0125, 1.01}) {
    if (target >= reached || below <= bound * target) continue;
    if (target == 1.01 && reached == kInfinity && start.options.empty()) continue;
    if (largest > bound * target * fastest) continue;  // it fits nowhere
    const bool tight = reached == kInfinity && target < 1.5;
    if (reach(target, tight ? 0.4 : 1)) reached = target;
    if (reached > target && !tight) break;
  }
  return best;
}

}  // namespace pipewright
