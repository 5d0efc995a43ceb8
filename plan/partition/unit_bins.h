// Units in bins that are to become stages: no order of the bins is kept, only that there be one.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/partition/bits.h"
#include "plan/partition/stage_load.h"

namespace pipewright {

struct UnitBins {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const std::vector<StageOption> options;  // of each bin
  int64_t& steps;                          // counted down
  std::vector<int> bin_of;                 // of each unit; -1: it is in none
  std::vector<std::vector<int>> members;
  std::vector<StageSums> sums;
  std::vector<int> inside;  // of each bin and net: units
  // All units before and after each unit, and each bin's.
  std::vector<Bits> before, after, before_bin, after_bin;
  // Groups are bins, and units that are in none: `queue` after Sort, `far` after FindFar.
  std::vector<int> queue, waiting;
  std::vector<char> far, reached;
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
  }

  int Bins() const { return static_cast<int>(options.size()); }
  int Units() const { return static_cast<int>(graph.units.size()); }
  int GroupOf(int unit) const { return bin_of[unit] < 0 ? Bins() + unit : bin_of[unit]; }

  // `keep`: whether the bin's counts change as well.
  void Change(StageSums& of, int bin, int unit, int sign, bool keep) {
    of.AddUnit(graph.units[unit], sign);
    int* counts = &inside[static_cast<size_t>(bin) * graph.nets.size()];
    for (int n : graph.nets_of[unit]) {
      const Net& net = graph.nets[n];
      int size = static_cast<int>(net.units.size()), before = counts[n], after = before + sign;
      bool was = before > 0 && before < size, is = after > 0 && after < size;
      if (was != is) of.AddCut(net, is ? 1 : -1);
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
    bin_of[unit] = bin;
  }

  void Take(int unit) {
    int bin = bin_of[unit];
    Change(sums[bin], bin, unit, -1, true);
    auto& list = members[bin];
    list.erase(std::find(list.begin(), list.end(), unit));
    if (list.empty()) sums[bin] = StageSums();
    SetEnds(bin, -1, -1, after_bin[bin], before_bin[bin]);
    bin_of[unit] = -1;
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
    waiting.assign(Bins() + Units(), 0);
    queue.clear();
    next_bins.clear();
    int bins = 0, units = 0, done = 0;
    for (int u = 0; u < Units(); ++u)
      for (int v : graph.next[u]) waiting[GroupOf(v)] += GroupOf(u) != GroupOf(v);
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
      for (int v : graph.next[u])
        if (int to = GroupOf(v); to != from && --waiting[to] == 0) offer(to);
    };
    steps -= 4 * Units() + 8 * Bins();
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
    return true;
  }

  // Whether the bins' order as it was still holds with the unit in the bin, which others are in.
  bool KeepsOrder(int unit, int bin) const {
    bool keeps = true;
    for (int v : graph.previous[unit])
      keeps = keeps && bin_of[v] >= 0 && behind[bin_of[v]] >= behind[bin];
    for (int v : graph.next[unit])
      keeps = keeps && bin_of[v] >= 0 && behind[bin_of[v]] <= behind[bin];
    return keeps;
  }

  // Groups in a topological order, in `queue`; false: there is a cycle.
  bool Sort() {
    waiting.assign(Bins() + Units(), 0);
    queue.clear();
    int groups = 0;
    for (int u = 0; u < Units(); ++u)
      for (int v : graph.next[u]) waiting[GroupOf(v)] += GroupOf(u) != GroupOf(v);
    for (int b = 0; b < Bins(); ++b) {
      groups += !members[b].empty();
      if (!members[b].empty() && waiting[b] == 0) queue.push_back(b);
    }
    for (int u = 0; u < Units(); ++u) {
      groups += bin_of[u] < 0;
      if (bin_of[u] < 0 && waiting[Bins() + u] == 0) queue.push_back(Bins() + u);
    }
    auto leave = [&](int u, int from) {
      for (int v : graph.next[u])
        if (int to = GroupOf(v); to != from && --waiting[to] == 0) queue.push_back(to);
    };
    for (size_t i = 0; i < queue.size(); ++i) {
      int from = queue[i];
      if (from >= Bins()) {
        leave(from - Bins(), from);
      } else {
        for (int u : members[from]) leave(u, from);
      }
    }
    steps -= 4 * Units();
    return static_cast<int>(queue.size()) == groups;
  }

  // Marks the groups to which a way of several steps leads from the unit, which is in no bin.
  void MarkFar(int unit, const std::vector<std::vector<int>>& next) {
    reached.assign(Bins() + Units(), 0);
    queue.clear();
    auto leave = [&](int u, bool first) {
      for (int v : next[u]) {
        int to = GroupOf(v);
        if (!first) far[to] = 1;
        if (reached[to]) continue;
        reached[to] = 1;
        queue.push_back(to);
      }
    };
    leave(unit, true);
    for (size_t i = 0; i < queue.size(); ++i) {
      int from = queue[i];
      // What leads from a group to itself is no way.
      char was = far[from];
      if (from >= Bins()) {
        leave(from - Bins(), false);
      } else {
        for (int u : members[from]) leave(u, false);
      }
      far[from] = was;
    }
    steps -= 3 * static_cast<int64_t>(queue.size()) + Units() / 8;
  }

  // Afterwards far[bin]: with the unit in it there would be a cycle.
  void FindFar(int unit) {
    far.assign(Bins() + Units(), 0);
    MarkFar(unit, graph.next);
    MarkFar(unit, graph.previous);
  }

  // What lies between the unit and those of the bin but two, and in neither: it has to come along.
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
    double work = 0;
    for (int v : between) work += graph.units[v].device_time;
    return work;
  }
};

}  // namespace pipewright
