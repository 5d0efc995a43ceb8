// Units in bins that are to become stages: no order of the bins is kept, only that there be one.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "plan/partition/problem/stage_load.h"
#include "plan/partition/problem/unit_set.h"

namespace pipewright {

struct UnitBins {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const std::vector<StageOption> options;  // of each bin
  int64_t& steps;                          // counted down
  std::vector<int> bin_of;                 // of each unit; -1: it is in none
  std::vector<double> work;                // of each unit
  std::vector<std::vector<int>> members;
  std::vector<StageSums> sums;
  std::vector<int> inside;  // of each bin and net: units
  // All units before and after each unit, and each bin's.
  std::vector<Bits> before, after, before_bin, after_bin;
  // Groups are bins, and units that are in none. `queue` after Sort and Order: all in an order.
  std::vector<int> group_of, queue, waiting;
  std::vector<int> edges;       // of all units: those after each, then those before each
  std::vector<size_t> first;    // of each unit in `edges`, then of each once more
  std::vector<uint64_t> paths;  // after FindPaths, of each group: those after it, then those before
  std::vector<uint64_t> far;    // after FindFar
  bool sorted = false, known = false;  // whether `queue`, and `paths`, are those of the bins now
  std::vector<int> between;  // after FindBetween
  const bool placed;        // whether memory depends on what comes after a stage
  std::vector<int> behind;  // bins after each, as of the last Order
  std::vector<std::pair<int, int>> next_bins;  // heap: how many may be behind a bin, and the bin
  Bits before_rest, after_rest;

  UnitBins(const PartitionProblem& p, const UnitGraph& g, std::vector<StageOption> o, int64_t& left)
      : problem(p), graph(g), options(std::move(o)), steps(left), placed(MemoryByPlace(p)) {
    behind.assign(Bins(), 0);
    bin_of.assign(Units(), -1);
    members.resize(Bins()), sums.resize(Bins());
    inside.assign(options.size() * graph.nets.size(), 0);
    before.assign(Units(), MakeBits(Units())), after = before;
    before_bin.assign(Bins(), MakeBits(Units())), after_bin = before_bin;
    before_rest = after_rest = MakeBits(Units());
    for (int u = 0; u < Units(); ++u)
      for (int v : graph.previous[u]) Unite(before[u], before[v]), Insert(before[u], v);
    for (int u = Units(); u-- > 0;)
      for (int v : graph.next[u]) Unite(after[u], after[v]), Insert(after[u], v);
    for (const auto* lists : {&graph.next, &graph.previous})
      for (const auto& list : *lists) {
        first.push_back(edges.size());
        edges.insert(edges.end(), list.begin(), list.end());
      }
    first.push_back(edges.size());
    for (int u = 0; u < Units(); ++u) group_of.push_back(Bins() + u);
    for (const Unit& unit : graph.units) work.push_back(unit.device_time);
  }

  int Bins() const { return static_cast<int>(options.size()); }
  int Units() const { return static_cast<int>(graph.units.size()); }
  size_t Words() const { return (static_cast<size_t>(Bins() + Units()) + 63) / 64; }
  // The units after, or before, a unit.
  std::span<const int> Next(int unit, bool backward = false) const {
    size_t at = static_cast<size_t>(unit + (backward ? Units() : 0));
    return {edges.data() + first[at], first[at + 1] - first[at]};
  }

  // `keep`: whether the bin's counts change as well.
  void Change(StageSums& of, int bin, int unit, int sign, bool keep) {
    of.AddUnit(graph.units[unit], sign);
    int* counts = &inside[static_cast<size_t>(bin) * graph.nets.size()];
    for (int n : graph.nets_of[unit]) {
      const Net& net = graph.nets[n];
      int size = static_cast<int>(net.units.size()), before = counts[n], after = before + sign;
      bool was = before > 0 && before < size, is = after > 0 && after < size;
      if (was != is) of.AddCut(net, is ? 1 : -1);
      if ((before > 0) != (after > 0)) of.stash_bytes += sign * net.stash_bytes;
      if (keep) counts[n] = after;
    }
    steps -= 2 + static_cast<int64_t>(graph.nets_of[unit].size());
  }

  // All units before and after those of the bin but two.
  void SetEnds(int bin, int but, int and_but, Bits& low, Bits& high) {
    low.assign(low.size(), 0), high.assign(high.size(), 0);
    for (int u : members[bin]) {
      if (u == but || u == and_but) continue;
      Unite(low, after[u]), Unite(high, before[u]);
    }
    steps -= static_cast<int64_t>(members[bin].size() * low.size());
  }

  void Put(int unit, int bin) {
    Unite(after_bin[bin], after[unit]), Unite(before_bin[bin], before[unit]);
    Change(sums[bin], bin, unit, 1, true);
    members[bin].push_back(unit);
    bin_of[unit] = group_of[unit] = bin;
    sorted = known = false;
  }

  void Take(int unit) {
    int bin = bin_of[unit];
    Change(sums[bin], bin, unit, -1, true);
    auto& list = members[bin];
    list.erase(std::find(list.begin(), list.end(), unit));
    if (list.empty()) sums[bin] = StageSums();
    SetEnds(bin, -1, -1, after_bin[bin], before_bin[bin]);
    bin_of[unit] = -1, group_of[unit] = Bins() + unit;
    sorted = known = false;
  }

  double Load(int bin, const StageSums& of) const {
    return of.Load(problem, options[bin], behind[bin]);
  }
  double Load(int bin) const { return Load(bin, sums[bin]); }

  double LoadWith(int bin, int unit) {
    StageSums with = sums[bin];
    Change(with, bin, unit, 1, false);
    return Load(bin, with);
  }

  // Memory but for buffers, of a unit and of all in a bin, where the bin is now.
  double UnitBytes(int unit, int bin) const {
    const Unit& of = graph.units[unit];
    return of.static_bytes + of.stash_bytes * InFlightCount(problem, 1, behind[bin]);
  }
  double BinBytes(int bin) const {
    const StageSums& of = sums[bin];
    return of.static_bytes + of.stash_bytes * InFlightCount(problem, 1, behind[bin]);
  }
  double MostBytes(int bin) const {
    return problem.devices[options[bin].device_class].memory_bytes * (1 + 1e-12);
  }

  // Bins that memory allows behind this one.
  int MostBehind(int bin) const {
    const StageSums& of = sums[bin];
    double room = MostBytes(bin) - of.static_bytes - of.cut_bytes;
    if (room < 0) return -1;
    double held = room / std::max(of.stash_bytes, 1e-300);
    if (held >= problem.microbatches || held > Bins()) return Bins();
    return static_cast<int>(std::floor(held)) - 1;
  }

  // Groups in a topological order in which every bin has no more behind it than its memory allows,
  // if there is one: of those that may come next always the bin that allows most (Lawler, 1973, on
  // jobs with deadlines, from the end). False: there is none, or a cycle; `behind` is as it was.
  bool Order() {
    if (!placed) {
      if (!Sort()) return false;
      int bins = 0;
      for (size_t i = queue.size(); i-- > 0;)
        if (queue[i] < Bins()) behind[queue[i]] = bins++;
      return true;
    }
    sorted = false;
    CountWaiting();
    next_bins.clear();
    int bins = 0, units = 0, done = 0;
    auto offer = [&](int group) {
      if (group >= Bins()) return queue.push_back(group);
      next_bins.push_back({MostBehind(group), group});
      std::push_heap(next_bins.begin(), next_bins.end());
    };
    for (int b = 0; b < Bins(); ++b) {
      bins += !members[b].empty();
      if (!members[b].empty() && waiting[b] == 0) offer(b);
    }
    for (int u = 0; u < Units(); ++u) {
      units += bin_of[u] < 0;
      if (bin_of[u] < 0 && waiting[Bins() + u] == 0) offer(Bins() + u);
    }
    auto leave = [&](int u, int from) {
      for (int v : Next(u))
        if (int to = group_of[v]; to != from && --waiting[to] == 0) offer(to);
    };
    steps -= 3 * Units() + 6 * Bins();
    for (size_t i = 0; i < queue.size() || !next_bins.empty(); ++i) {
      if (i == queue.size()) {
        auto [most, bin] = next_bins.front();
        if (most < bins - 1 - done++) return false;
        std::pop_heap(next_bins.begin(), next_bins.end());
        next_bins.pop_back();
        queue.push_back(bin);
      }
      int from = queue[i];
      if (from >= Bins()) {
        leave(from - Bins(), from);
      } else {
        for (int u : members[from]) leave(u, from);
      }
    }
    if (static_cast<int>(queue.size()) != bins + units) return false;
    for (int group : queue)
      if (group < Bins()) behind[group] = --bins;
    return sorted = true;
  }

  // Says whether paths lead from units of the bin to the unit, and from it to others of them.
  bool Within(int unit, int bin) const {
    return pipewright::Has(after_bin[bin], unit) && pipewright::Has(before_bin[bin], unit);
  }

  // Says whether the bins' order still holds with the unit in the bin, which others are in.
  bool KeepsOrder(int unit, int bin) const {
    bool keeps = true;
    for (int v : Next(unit, true))
      keeps = keeps && bin_of[v] >= 0 && behind[bin_of[v]] >= behind[bin];
    for (int v : Next(unit))
      keeps = keeps && bin_of[v] >= 0 && behind[bin_of[v]] <= behind[bin];
    return keeps;
  }

  // Empties the queue and counts for each group the edges from others.
  void CountWaiting() {
    waiting.assign(Bins() + Units(), 0);
    queue.clear();
    for (int u = 0; u < Units(); ++u)
      for (int v : Next(u)) waiting[group_of[v]] += group_of[u] != group_of[v];
  }

  // Groups in a topological order, in `queue`; false: there is a cycle.
  bool Sort() {
    if (sorted) return true;
    CountWaiting();
    int groups = 0;
    for (int b = 0; b < Bins(); ++b) {
      groups += !members[b].empty();
      if (!members[b].empty() && waiting[b] == 0) queue.push_back(b);
    }
    for (int u = 0; u < Units(); ++u) {
      groups += bin_of[u] < 0;
      if (bin_of[u] < 0 && waiting[Bins() + u] == 0) queue.push_back(Bins() + u);
    }
    auto leave = [&](int u, int from) {
      for (int v : Next(u))
        if (int to = group_of[v]; to != from && --waiting[to] == 0) queue.push_back(to);
    };
    for (size_t i = 0; i < queue.size(); ++i) {
      int from = queue[i];
      if (from >= Bins()) {
        leave(from - Bins(), from);
      } else {
        for (int u : members[from]) leave(u, from);
      }
    }
    steps -= 3 * Units();
    return sorted = static_cast<int>(queue.size()) == groups;
  }

  uint64_t* WaysOf(int group, bool backward) {
    return &paths[(static_cast<size_t>(group) + (backward ? Bins() + Units() : 0)) * Words()];
  }
  static bool Has(const uint64_t* set, int i) { return set[i >> 6] >> (i & 63) & 1; }

  // Finds to which groups paths lead from each, and from which to it.
  void FindPaths() {
    if (known) return;
    known = true;
    Sort();
    const size_t words = Words();
    paths.assign(2 * words * (Bins() + Units()), 0);
    for (bool backward : {false, true})
      for (size_t i = 0; i < queue.size(); ++i) {
        const int from = queue[backward ? i : queue.size() - 1 - i];
        uint64_t* set = WaysOf(from, backward);
        auto add = [&](int u) {
          for (int v : Next(u, backward)) {
            const int to = group_of[v];
            if (to == from || Has(set, to)) continue;
            const uint64_t* other = WaysOf(to, backward);
            for (size_t w = 0; w < words; ++w) set[w] |= other[w];
            set[to >> 6] |= uint64_t{1} << (to & 63);
          }
        };
        if (from >= Bins()) {
          add(from - Bins());
        } else {
          for (int u : members[from]) add(u);
        }
      }
    steps -= 6 * Units();
  }

  // Afterwards Far(group): a way of several steps leads from the unit, which is in no bin, to the
  // group, or from that to it: with both as one there would be a cycle.
  void FindFar(int unit) {
    FindPaths();
    far.assign(Words(), 0);
    for (bool backward : {false, true})
      for (int v : Next(unit, backward)) {
        const uint64_t* set = WaysOf(group_of[v], backward);
        for (size_t w = 0; w < far.size(); ++w) far[w] |= set[w];
      }
    steps -= 4;
  }
  bool Far(int group) const { return Has(far.data(), group); }

  // Says whether a path leads from the unit, which is in no bin, through other groups to `member`
  // of the bin, or back. Call it after FindPaths.
  bool Conflict(int unit, int bin, int member) {
    for (bool backward : {false, true}) {
      const uint64_t* set = WaysOf(Bins() + unit, backward);
      for (int v : Next(member, !backward))
        if (group_of[v] != bin && Has(set, group_of[v])) return true;
    }
    return false;
  }

  // Finds what lies between the unit and those of the bin but two, and in neither: it has to come
  // along.
  void FindBetween(int unit, int bin, int but = -1, int and_but = -1) {
    between.clear();
    const Bits *low = &after_bin[bin], *high = &before_bin[bin];
    if (but >= 0) {
      SetEnds(bin, but, and_but, after_rest, before_rest);
      low = &after_rest, high = &before_rest;
    }
    for (size_t w = 0; w < low->size(); ++w) {
      uint64_t word = (after[unit][w] & (*high)[w]) | (before[unit][w] & (*low)[w]);
      for (; word; word &= word - 1) {
        int v = static_cast<int>(w * 64) + __builtin_ctzll(word);
        if (bin_of[v] != bin || v == but || v == and_but) between.push_back(v);
      }
    }
    steps -= static_cast<int64_t>(low->size());
  }

  double WorkBetween() const {
    double sum = 0;
    for (int v : between) sum += work[v];
    return sum;
  }
};

}  // namespace pipewright
