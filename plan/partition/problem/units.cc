#include "plan/partition/problem/units.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "formats/graph_text.h"

namespace pipewright {

namespace {

using Edges = std::vector<std::pair<int, int>>;

}  // namespace

// Returns the edges between sets with forward nodes, and mirrored backward edges for other sets.
static Edges OrderEdges(const PartitionProblem& problem, UnitSets& sets) {
  std::vector<char> has_forward(problem.nodes.size(), 0);
  for (size_t i = 0; i < problem.nodes.size(); ++i)
    if (!problem.nodes[i].backward) has_forward[sets.Find(static_cast<int>(i))] = 1;
  Edges edges;
  for (const PartitionValue& value : problem.values) {
    if (value.producer < 0) continue;
    int from = sets.Find(value.producer);
    bool backward = problem.nodes[value.producer].backward;
    for (int consumer : value.consumers) {
      int to = sets.Find(consumer);
      if (from == to || backward != problem.nodes[consumer].backward) continue;
      if (!backward) edges.push_back({from, to});
      if (backward && (!has_forward[from] || !has_forward[to])) edges.push_back({to, from});
    }
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

static std::vector<std::vector<int>> Adjacent(int size, const Edges& edges) {
  std::vector<std::vector<int>> next(size);
  for (auto [from, to] : edges) next[from].push_back(to);
  return next;
}

// Runs Tarjan's algorithm with an explicit stack.
void UniteCycles(UnitSets& sets, const Edges& edges) {
  int n = static_cast<int>(sets.parent.size()), clock = 0;
  auto next = Adjacent(n, edges);
  std::vector<int> index(n, -1), low(n, 0), open;
  std::vector<char> is_open(n, 0);
  std::vector<std::pair<int, size_t>> stack;
  for (int root = 0; root < n; ++root) {
    if (index[root] >= 0) continue;
    stack.push_back({root, 0});
    while (!stack.empty()) {
      auto& [node, child] = stack.back();
      if (child == 0 && index[node] < 0) {
        index[node] = low[node] = clock++;
        open.push_back(node);
        is_open[node] = 1;
      }
      if (child < next[node].size()) {
        int to = next[node][child++];
        if (index[to] < 0)
          stack.push_back({to, 0});
        else if (is_open[to])
          low[node] = std::min(low[node], index[to]);
        continue;
      }
      int done = node;
      stack.pop_back();
      if (!stack.empty()) low[stack.back().first] = std::min(low[stack.back().first], low[done]);
      if (low[done] < index[done]) continue;
      for (int member = -1; member != done;) {
        member = open.back();
        open.pop_back();
        is_open[member] = 0;
        sets.Unite(member, done);
      }
    }
  }
}

static UnitGraph Assemble(const PartitionProblem& problem, UnitSets& sets, const Edges& raw) {
  int n = static_cast<int>(problem.nodes.size());
  std::vector<int> dense(n, -1);
  int count = 0;
  for (int i = 0; i < n; ++i)
    if (sets.Find(i) == i) dense[i] = count++;
  Edges edges;
  for (auto [from, to] : raw) {
    int a = dense[sets.Find(from)], b = dense[sets.Find(to)];
    if (a != b) edges.push_back({a, b});
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<int> order = TopologicalOrder(count, edges), place(count);
  for (int i = 0; i < count; ++i) place[order[i]] = i;

  UnitGraph graph;
  graph.units.resize(count), graph.next.resize(count), graph.previous.resize(count);
  graph.nets_of.resize(count);
  auto unit_of = [&](int node) { return place[dense[sets.Find(node)]]; };
  for (int i = 0; i < n; ++i) {
    Unit& unit = graph.units[unit_of(i)];
    const PartitionNode& node = problem.nodes[i];
    unit.nodes.push_back(i);
    unit.device_time += node.device_time;
    unit.host_time += node.host_time;
    unit.device_ok = unit.device_ok && node.device_ok;
    unit.static_bytes += node.static_bytes;
    unit.stash_bytes += node.stash_bytes;
    unit.parameter_bytes += node.parameter_bytes;
  }
  for (auto [from, to] : edges) {
    graph.next[place[from]].push_back(place[to]);
    graph.previous[place[to]].push_back(place[from]);
  }
  std::map<std::vector<int>, Net> nets;
  for (const PartitionValue& value : problem.values) {
    std::vector<int> units;
    if (value.producer >= 0) units.push_back(unit_of(value.producer));
    for (int consumer : value.consumers) units.push_back(unit_of(consumer));
    std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
    if (units.size() == 1) graph.units[units[0]].stash_bytes += value.stash_bytes;
    if (units.size() < 2) continue;
    Net& net = nets[units];
    net.stash_bytes += value.stash_bytes;
    net.time += value.time;
    net.transfers += value.transfers;
    net.bytes += value.bytes;
  }
  for (auto& [units, net] : nets) {
    net.units = units;
    if (net.time == 0 && net.transfers * problem.transfer_latency == 0 && net.bytes == 0 &&
        net.stash_bytes == 0)
      continue;
    for (int unit : units) graph.nets_of[unit].push_back(static_cast<int>(graph.nets.size()));
    graph.nets.push_back(net);
  }
  return graph;
}

// Returns the only neighbor of `unit` if all nets of the unit contain it, or -1.
static int OnlyNeighbour(const UnitGraph& graph, int unit) {
  int other = -1;
  for (const auto* list : {&graph.previous[unit], &graph.next[unit]})
    for (int neighbour : *list) {
      if (other >= 0 && neighbour != other) return -1;
      other = neighbour;
    }
  if (other < 0) return -1;
  for (int net : graph.nets_of[unit])
    if (!std::binary_search(graph.nets[net].units.begin(), graph.nets[net].units.end(), other))
      return -1;
  return other;
}

UnitGraph BuildUnits(const PartitionProblem& problem, Merge merge) {
  UnitSets sets(static_cast<int>(problem.nodes.size()));
  std::map<int, int> first_of_group;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    if (problem.nodes[i].group < 0) continue;
    auto [first, added] = first_of_group.emplace(problem.nodes[i].group, static_cast<int>(i));
    if (!added) sets.Unite(first->second, static_cast<int>(i));
  }
  Edges edges = OrderEdges(problem, sets);
  UniteCycles(sets, edges);
  double total_bytes = 0;
  int most_in_flight = 1, devices = 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  for (int r = 1; r <= problem.max_replicas; ++r)
    most_in_flight = std::max(most_in_flight, InFlightCount(problem, r, devices));
  for (const PartitionNode& node : problem.nodes)
    total_bytes += node.static_bytes + node.stash_bytes * most_in_flight;
  for (const PartitionValue& value : problem.values)
    total_bytes += value.bytes + value.stash_bytes * most_in_flight;
  bool unlimited = true;
  for (const DeviceClass& device : problem.devices)
    if (!device.host && device.memory_bytes < total_bytes) unlimited = false;

  UnitGraph graph = Assemble(problem, sets, edges);
  while (merge != Merge::kNone) {
    int left = static_cast<int>(graph.units.size());
    std::vector<char> moved(graph.units.size(), 0), kept(graph.units.size(), 0);
    bool changed = false;
    for (int u = 0; u < static_cast<int>(graph.units.size()); ++u) {
      const Unit& unit = graph.units[u];
      if (unit.device_time > 0 || unit.host_time > 0 || kept[u]) continue;
      if (problem.stages >= 0 && left <= problem.stages) break;
      bool light = unit.static_bytes == 0 && unit.stash_bytes == 0 && unit.parameter_bytes == 0;
      if (!light && !unlimited && merge != Merge::kParameters) continue;
      if (unit.parameter_bytes > 0 && problem.max_replicas > 1 && merge != Merge::kParameters)
        continue;
      int other = OnlyNeighbour(graph, u);
      if (other < 0 || moved[other]) continue;
      if (!unit.device_ok && graph.units[other].device_ok) continue;
      moved[u] = kept[other] = 1;
      sets.Unite(unit.nodes[0], graph.units[other].nodes[0]);
      changed = true;
      --left;
    }
    if (!changed) break;
    graph = Assemble(problem, sets, edges);
  }
  return graph;
}

UnitGraph Coarsen(const UnitGraph& graph, const std::vector<int>& group_of, int groups) {
  UnitGraph coarse;
  coarse.units.resize(groups), coarse.nets_of.resize(groups);
  coarse.next.resize(groups), coarse.previous.resize(groups);
  for (size_t u = 0; u < graph.units.size(); ++u) {
    const Unit& unit = graph.units[u];
    Unit& sum = coarse.units[group_of[u]];
    sum.nodes.insert(sum.nodes.end(), unit.nodes.begin(), unit.nodes.end());
    sum.device_time += unit.device_time;
    sum.host_time += unit.host_time;
    sum.device_ok = sum.device_ok && unit.device_ok;
    sum.static_bytes += unit.static_bytes;
    sum.stash_bytes += unit.stash_bytes;
    sum.parameter_bytes += unit.parameter_bytes;
    for (int to : graph.next[u])
      if (group_of[to] != group_of[u]) coarse.next[group_of[u]].push_back(group_of[to]);
  }
  for (int g = 0; g < groups; ++g) {
    auto& next = coarse.next[g];
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    for (int to : next) coarse.previous[to].push_back(g);
  }
  for (const Net& net : graph.nets) {
    Net merged = net;
    for (int& unit : merged.units) unit = group_of[unit];
    std::sort(merged.units.begin(), merged.units.end());
    merged.units.erase(std::unique(merged.units.begin(), merged.units.end()), merged.units.end());
    if (merged.units.size() == 1) coarse.units[merged.units[0]].stash_bytes += net.stash_bytes;
    if (merged.units.size() < 2) continue;
    for (int g : merged.units) coarse.nets_of[g].push_back(static_cast<int>(coarse.nets.size()));
    coarse.nets.push_back(merged);
  }
  return coarse;
}

Merge ExactMerge(const PartitionProblem& problem) {
  return problem.stages >= 0 ? Merge::kNone : Merge::kLossless;
}

}  // namespace pipewright
