#include "plan/partition/fast/grow.h"

#include <algorithm>

namespace pipewright {

namespace {

// Stages taken one after the other from one end of the graph.
struct Growth {
  const UnitGraph& graph;
  const std::vector<std::vector<int>>& before;  // what must be taken ahead of each unit
  double latency, most;                         // load of one stage
  int64_t& steps;
  std::vector<std::vector<std::pair<int, double>>> ties{};
  std::vector<double> all_ties{};
  std::vector<char> placed{};
  // These describe the stage that grows:
  std::vector<int> stage{};
  std::vector<char> in_stage{};
  std::vector<double> tie{};  // of each unit to the stage
  std::vector<int> tied{};    // units that have one
  std::vector<int> inside{};  // of each net
  double work = 0, cut = 0;

  double Time(const Net& net) const { return net.time + net.transfers * latency; }

  void FindTies() {
    size_t n = graph.units.size();
    ties.resize(n), all_ties.assign(n, 1e-12), placed.assign(n, 0);
    in_stage.assign(n, 0), tie.assign(n, 0), inside.assign(graph.nets.size(), 0);
    for (const Net& net : graph.nets) {
      if (net.units.size() > 64) continue;
      double share = (Time(net) + 1e-9) / static_cast<double>(net.units.size() - 1);
      for (int a : net.units)
        for (int b : net.units)
          if (a != b) ties[a].push_back({b, share}), all_ties[a] += share;
    }
  }

  void Put(int unit) {
    in_stage[unit] = 1;
    work += graph.units[unit].device_time;
    for (auto [other, share] : ties[unit]) {
      if (tie[other] == 0) tied.push_back(other);
      tie[other] += share;
    }
    for (int n : graph.nets_of[unit]) {
      const Net& net = graph.nets[n];
      int size = static_cast<int>(net.units.size());
      bool was = inside[n] > 0 && inside[n] < size;
      ++inside[n];
      bool is = inside[n] > 0 && inside[n] < size;
      cut += (is - was) * Time(net);
    }
    stage.push_back(unit);
    steps -= 4 + static_cast<int64_t>(ties[unit].size() + 2 * graph.nets_of[unit].size());
  }

  // The unit with all that must come ahead of it and is not taken yet, in order; empty: too much.
  std::vector<int> Closure(int unit) const {
    std::vector<int> closure = {unit};
    double sum = work + graph.units[unit].device_time;
    for (size_t i = 0; i < closure.size(); ++i) {
      if (sum > most) return {};
      for (int v : before[closure[i]]) {
        if (placed[v] || in_stage[v]) continue;
        if (std::find(closure.begin(), closure.end(), v) != closure.end()) continue;
        closure.push_back(v);
        sum += graph.units[v].device_time;
      }
    }
    return sum > most ? std::vector<int>() : closure;
  }

  void Grow(int seed) {
    for (int u : Closure(seed)) Put(u);
    std::vector<std::pair<double, int>> near;
    for (bool grown = !stage.empty(); grown;) {
      grown = false;
      near.clear();
      steps -= static_cast<int64_t>(tied.size());
      for (int u : tied)
        if (!placed[u] && !in_stage[u]) near.push_back({-tie[u] * tie[u] / all_ties[u], u});
      size_t looks = std::min<size_t>(near.size(), 8);
      std::partial_sort(near.begin(), near.begin() + static_cast<int>(looks), near.end());
      for (size_t i = 0; i < looks && !grown; ++i) {
        std::vector<int> closure = Closure(near[i].second);
        for (int u : closure) Put(u);
        grown = !closure.empty();
      }
    }
  }

  void Clear() {
    for (int u : stage) {
      in_stage[u] = 0;
      for (int n : graph.nets_of[u]) inside[n] = 0;
    }
    for (int u : tied) tie[u] = 0;
    stage.clear();
    tied.clear();
    work = cut = 0;
  }

  std::vector<int> Order() {
    FindTies();
    int n = static_cast<int>(graph.units.size());
    std::vector<int> order;
    while (static_cast<int>(order.size()) < n) {
      std::vector<int> ready;
      for (int u = 0; u < n; ++u)
        if (!placed[u] &&
            std::all_of(before[u].begin(), before[u].end(), [&](int v) { return placed[v]; }))
          ready.push_back(u);
      size_t stride = (ready.size() + 31) / 32;
      double best = -kInfinity;
      std::vector<int> kept = {ready[0]};
      for (size_t i = 0; i < ready.size() && (i == 0 || steps > 0); i += stride) {
        Grow(ready[i]);
        double value = work - 2 * cut;
        if (!stage.empty() && value > best) best = value, kept = stage;
        Clear();
      }
      std::sort(kept.begin(), kept.end());  // a topological order
      if (&before == &graph.next) std::reverse(kept.begin(), kept.end());
      for (int u : kept) placed[u] = 1;
      order.insert(order.end(), kept.begin(), kept.end());
    }
    return order;
  }
};

}  // namespace

std::vector<int> GrownOrder(const UnitGraph& graph, double transfer_latency, double most,
                            bool from_end, int64_t& steps) {
  Growth growth{graph, from_end ? graph.next : graph.previous, transfer_latency, most, steps};
  std::vector<int> order = growth.Order();
  if (from_end) std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace pipewright
