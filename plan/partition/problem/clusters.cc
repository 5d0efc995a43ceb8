#include "plan/partition/problem/clusters.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <unordered_map>

#include "formats/graph_text.h"

namespace pipewright {

namespace {

struct Pair {
  int low, high;  // low < high
  double rating;
};

struct Round {
  const UnitGraph& graph;
  const ClusterOptions& options;
  std::vector<int> parent;  // the leader of each unit's cluster
  std::vector<double> work, bytes;

  Round(const UnitGraph& g, const ClusterOptions& o) : graph(g), options(o) {
    parent.resize(g.units.size());
    std::iota(parent.begin(), parent.end(), 0);
    for (const Unit& unit : g.units) {
      work.push_back(unit.device_time);
      bytes.push_back(unit.static_bytes + unit.stash_bytes);
    }
  }

  bool Alike(int a, int b) const {
    return graph.units[a].device_ok == graph.units[b].device_ok &&
           (!options.apart || (*options.apart)[a] == (*options.apart)[b]);
  }

  bool MayJoin(int a, int b) const {
    if (!Alike(a, b)) return false;
    a = parent[a], b = parent[b];
    return work[a] + work[b] <= options.most_work && bytes[a] + bytes[b] <= options.most_bytes;
  }

  void Join(int unit, int to) {
    to = parent[to];
    parent[unit] = to;
    work[to] += work[unit];
    bytes[to] += bytes[unit];
  }
};

}  // namespace

static void Disturb(unsigned seed, std::vector<Pair>& pairs) {
  std::minstd_rand random(seed);
  const double range = static_cast<double>(std::minstd_rand::max());
  for (Pair& pair : pairs) pair.rating *= 0.5 + 0.5 * static_cast<double>(random()) / range;
}

// Returns the pairs of units that share a net, rated as ClusterOptions::rating says.
static std::vector<Pair> RatedPairs(const UnitGraph& graph, double latency, int rating) {
  double total = 0;
  for (const Unit& unit : graph.units) total += unit.device_time;
  double mean = total / static_cast<double>(graph.units.size()) + 1e-300;
  std::vector<Pair> pairs;
  for (const Net& net : graph.nets) {
    size_t size = net.units.size();
    double share =
        (net.time + net.transfers * latency + 1e-6 * mean) / static_cast<double>(size - 1);
    for (size_t i = 0; i + 1 < size; ++i) {
      pairs.push_back({net.units[i], net.units[i + 1], share});
      if (i > 0) pairs.push_back({net.units[0], net.units[i + 1], share});
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return a.low != b.low ? a.low < b.low : a.high < b.high;
  });
  size_t count = 0;
  for (const Pair& pair : pairs) {
    if (count > 0 && pairs[count - 1].low == pair.low && pairs[count - 1].high == pair.high)
      pairs[count - 1].rating += pair.rating;
    else
      pairs[count++] = pair;
  }
  pairs.resize(count);
  if (rating == 1) return pairs;
  if (rating == 2) {
    std::vector<double> all(graph.units.size(), 0);
    for (const Pair& pair : pairs) all[pair.low] += pair.rating, all[pair.high] += pair.rating;
    for (Pair& pair : pairs) pair.rating *= pair.rating / (all[pair.low] * all[pair.high]);
    return pairs;
  }
  for (Pair& pair : pairs)
    pair.rating /= graph.units[pair.low].device_time + graph.units[pair.high].device_time + mean;
  return pairs;
}

static std::vector<double> BestRatings(const UnitGraph& graph, const std::vector<Pair>& pairs) {
  std::vector<double> best(graph.units.size(), 0);
  for (const Pair& pair : pairs) {
    best[pair.low] = std::max(best[pair.low], pair.rating);
    best[pair.high] = std::max(best[pair.high], pair.rating);
  }
  return best;
}

// Merges pairs on the same level or on adjacent ones. A cycle could only run through pairs that are
// all on the same two levels, and the last of these would have an edge to one other pair and an
// edge from another.
static void JoinByLevel(Round& round, const std::vector<Pair>& pairs, double least, bool mirrored) {
  const UnitGraph& graph = round.graph;
  int n = static_cast<int>(graph.units.size());
  const auto& before = mirrored ? graph.next : graph.previous;
  const auto& after = mirrored ? graph.previous : graph.next;
  std::vector<int> level(n, 0);
  for (int i = 0; i < n; ++i) {
    int u = mirrored ? n - 1 - i : i;
    for (int v : before[u]) level[u] = std::max(level[u], level[v] + 1);
  }
  std::vector<double> best = BestRatings(graph, pairs);
  std::vector<Pair> sorted;
  for (const Pair& pair : pairs)
    if (std::abs(level[pair.low] - level[pair.high]) <= 1 &&
        pair.rating >= least * std::max(best[pair.low], best[pair.high]))
      sorted.push_back(pair);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Pair& a, const Pair& b) { return a.rating > b.rating; });
  std::vector<char> taken(n, 0), lower(n, 0), upper(n, 0);
  for (const Pair& pair : sorted) {
    int a = pair.low, b = pair.high;
    if (taken[a] || taken[b] || !round.MayJoin(a, b)) continue;
    if (level[a] != level[b]) {
      if (level[a] > level[b]) std::swap(a, b);
      bool out = false, in = false;
      for (int v : after[a]) out = out || (v != b && upper[v] && level[v] == level[b]);
      for (int v : before[b]) in = in || (v != a && lower[v] && level[v] == level[a]);
      if (out && in) continue;
      lower[a] = upper[b] = 1;
    }
    taken[a] = taken[b] = 1;
    round.Join(std::max(a, b), std::min(a, b));
  }
}

// Merges units with their only predecessor. All edges into such a cluster enter at its first unit,
// so no cycle arises.
static void JoinOnly(Round& round, const std::vector<Pair>& pairs, double least, bool mirrored) {
  const UnitGraph& graph = round.graph;
  int n = static_cast<int>(graph.units.size());
  const auto& before = mirrored ? graph.next : graph.previous;
  std::vector<double> best = BestRatings(graph, pairs);
  for (int i = 0; i < n; ++i) {
    int u = mirrored ? n - 1 - i : i;
    if (before[u].size() != 1 || !round.MayJoin(u, before[u][0])) continue;
    int a = std::min(u, before[u][0]), b = std::max(u, before[u][0]);
    auto found = std::lower_bound(pairs.begin(), pairs.end(), std::make_pair(a, b),
                                  [](const Pair& pair, const std::pair<int, int>& ends) {
                                    return std::make_pair(pair.low, pair.high) < ends;
                                  });
    bool rated = found != pairs.end() && found->low == a && found->high == b;
    if ((rated ? found->rating : 0) >= least * best[u]) round.Join(u, before[u][0]);
  }
}

// Merges pairs regardless of paths between them. A pair on a cycle is merged with all units on it,
// or not at all.
static void JoinCycles(Round& round, const std::vector<Pair>& pairs, double least) {
  const UnitGraph& graph = round.graph;
  int n = static_cast<int>(graph.units.size());
  std::vector<double> best = BestRatings(graph, pairs);
  std::vector<Pair> sorted;
  for (const Pair& pair : pairs)
    if (pair.rating >= least * std::max(best[pair.low], best[pair.high])) sorted.push_back(pair);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Pair& a, const Pair& b) { return a.rating > b.rating; });
  UnitSets sets(n);
  std::vector<char> taken(n, 0);
  for (const Pair& pair : sorted) {
    if (taken[pair.low] || taken[pair.high] || !round.MayJoin(pair.low, pair.high)) continue;
    taken[pair.low] = taken[pair.high] = 1;
    sets.Unite(pair.low, pair.high);
  }
  std::vector<std::pair<int, int>> edges;
  for (int u = 0; u < n; ++u)
    for (int v : graph.next[u])
      if (sets.Find(u) != sets.Find(v)) edges.push_back({sets.Find(u), sets.Find(v)});
  UniteCycles(sets, edges);
  std::vector<double> work(n, 0), bytes(n, 0);
  std::vector<char> mixed(n, 0);
  for (int u = 0; u < n; ++u) {
    int to = sets.Find(u);
    work[to] += round.work[u], bytes[to] += round.bytes[u];
    mixed[to] = mixed[to] || !round.Alike(to, u);
  }
  for (int u = 0; u < n; ++u) {
    int to = sets.Find(u);
    if (u != to && !mixed[to] && work[to] <= round.options.most_work &&
        bytes[to] <= round.options.most_bytes)
      round.Join(u, to);
  }
}

// Merges nets of the same units.
static void MergeNets(UnitGraph& graph) {
  std::vector<int> order(graph.nets.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return graph.nets[a].units < graph.nets[b].units; });
  std::vector<Net> nets;
  for (int n : order) {
    Net& net = graph.nets[n];
    if (!nets.empty() && nets.back().units == net.units) {
      nets.back().time += net.time;
      nets.back().transfers += net.transfers;
      nets.back().bytes += net.bytes;
      nets.back().stash_bytes += net.stash_bytes;
    } else {
      nets.push_back(std::move(net));
    }
  }
  graph.nets = std::move(nets);
  for (auto& list : graph.nets_of) list.clear();
  for (size_t n = 0; n < graph.nets.size(); ++n)
    for (int unit : graph.nets[n].units) graph.nets_of[unit].push_back(static_cast<int>(n));
}

Coarser GroupUnits(const UnitGraph& graph, const std::vector<int>& leader) {
  int n = static_cast<int>(graph.units.size()), count = 0;
  std::vector<int> dense(n, -1);
  for (int u = 0; u < n; ++u)
    if (leader[u] == u) dense[u] = count++;
  std::vector<std::pair<int, int>> edges;
  for (int u = 0; u < n; ++u)
    for (int v : graph.next[u])
      if (leader[u] != leader[v]) edges.push_back({dense[leader[u]], dense[leader[v]]});
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<int> order = TopologicalOrder(count, edges), place(count);
  for (int i = 0; i < count; ++i) place[order[i]] = i;
  Coarser coarser;
  coarser.group_of.resize(n);
  for (int u = 0; u < n; ++u) coarser.group_of[u] = place[dense[leader[u]]];
  coarser.graph = Coarsen(graph, coarser.group_of, count);
  MergeNets(coarser.graph);
  return coarser;
}

// A unit is merged only with a partner whose rating is at least this share of its best partner's:
// first with partners close to the best, then with others.
constexpr double kLeastRatings[] = {0.9, 0.5, 0.2};
constexpr double kShrink = 0.6;  // merging stops when at most this share of the units is left

Coarser CoarsenByTraffic(const UnitGraph& graph, double transfer_latency,
                         const ClusterOptions& options) {
  Coarser result;
  result.graph = graph;
  result.group_of.resize(graph.units.size());
  std::iota(result.group_of.begin(), result.group_of.end(), 0);
  std::vector<int> apart;
  ClusterOptions now = options;
  if (options.apart) apart = *options.apart, now.apart = &apart;
  const double first = static_cast<double>(graph.units.size());
  for (const double least : kLeastRatings)
    for (int kind = 0; kind < 5; ++kind) {
      Round round(result.graph, now);
      std::vector<Pair> pairs = RatedPairs(result.graph, transfer_latency, options.rating);
      if (options.seed > 0) Disturb(options.seed, pairs);
      if (kind < 2)
        JoinOnly(round, pairs, least, kind == 1);
      else if (kind < 4)
        JoinByLevel(round, pairs, least, kind == 3);
      else
        JoinCycles(round, pairs, least);
      Coarser next = GroupUnits(round.graph, round.parent);
      if (options.apart) {
        std::vector<int> coarse(next.graph.units.size());
        for (size_t u = 0; u < next.group_of.size(); ++u) coarse[next.group_of[u]] = apart[u];
        apart = coarse;
      }
      for (int& group : result.group_of) group = next.group_of[group];
      result.graph = std::move(next.graph);
      if (static_cast<double>(result.graph.units.size()) <= kShrink * first) return result;
    }
  return result;
}

}  // namespace pipewright
