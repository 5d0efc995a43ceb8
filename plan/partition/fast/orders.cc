#include "plan/partition/fast/orders.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

namespace pipewright {

namespace {

using Order = std::vector<int>;
using Lists = std::vector<std::vector<int>>;

}  // namespace

// Finishes one branch before it begins the next. `low_first` takes low numbers first.
static Order DepthFirst(const Lists& next, const Lists& previous, bool low_first) {
  int n = static_cast<int>(next.size());
  std::vector<int> waiting(n), stack;
  for (int u = 0; u < n; ++u) waiting[u] = static_cast<int>(previous[u].size());
  auto push = [&](std::vector<int> units) {
    std::sort(units.begin(), units.end());
    if (low_first) std::reverse(units.begin(), units.end());
    stack.insert(stack.end(), units.begin(), units.end());
  };
  std::vector<int> sources;
  for (int u = 0; u < n; ++u)
    if (!waiting[u]) sources.push_back(u);
  push(sources);
  Order order;
  while (!stack.empty()) {
    int u = stack.back();
    stack.pop_back();
    order.push_back(u);
    std::vector<int> ready;
    for (int v : next[u])
      if (--waiting[v] == 0) ready.push_back(v);
    push(ready);
  }
  return order;
}

static Order ByDepth(const Lists& next, const Lists& previous) {
  int n = static_cast<int>(next.size());
  std::vector<int> depth(n, 0);
  for (int u = 0; u < n; ++u)
    for (int before : previous[u]) depth[u] = std::max(depth[u], depth[before] + 1);
  Order order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return depth[a] < depth[b]; });
  return order;
}

// Takes the unit that adds least to the cut after it; among equals, the one that became ready last.
static Order LeastCut(const UnitGraph& graph, const Lists& next, const Lists& previous) {
  int n = static_cast<int>(next.size());
  std::vector<int> waiting(n), inside(graph.nets.size(), 0), stamp(n, 0);
  auto change = [&](int u) {
    double delta = 0;
    for (int net : graph.nets_of[u]) {
      const Net& e = graph.nets[net];
      if (inside[net] == 0) delta += e.time + e.transfers * 1e-12;
      if (inside[net] + 1 == static_cast<int>(e.units.size()))
        delta -= e.time + e.transfers * 1e-12;
    }
    return delta;
  };
  using Entry = std::tuple<double, int, int>;  // (added to the cut, -time it became ready, unit)
  std::set<Entry> ready;
  std::vector<Entry> entry(n);
  std::vector<char> is_ready(n, 0);
  auto insert = [&](int u) {
    entry[u] = {change(u), -stamp[u], u};
    ready.insert(entry[u]);
    is_ready[u] = 1;
  };
  for (int u = 0; u < n; ++u) {
    waiting[u] = static_cast<int>(previous[u].size());
    if (!waiting[u]) insert(u);
  }
  Order order;
  std::vector<int> touched;
  while (!ready.empty()) {
    int u = std::get<2>(*ready.begin());
    ready.erase(ready.begin());
    is_ready[u] = 0;
    order.push_back(u);
    touched.clear();
    for (int net : graph.nets_of[u]) {
      int size = static_cast<int>(graph.nets[net].units.size());
      ++inside[net];
      // Other units are affected only if the net begins to be cut or has one member left.
      if (inside[net] == 1 || inside[net] == size - 1)
        touched.insert(touched.end(), graph.nets[net].units.begin(), graph.nets[net].units.end());
    }
    for (int v : touched)
      if (is_ready[v]) {
        ready.erase(entry[v]);
        insert(v);
      }
    for (int v : next[u])
      if (--waiting[v] == 0) {
        stamp[v] = static_cast<int>(order.size());
        insert(v);
      }
  }
  return order;
}

std::vector<std::vector<int>> CandidateOrders(const UnitGraph& graph) {
  std::vector<Order> orders(1, Order(graph.units.size()));
  std::iota(orders[0].begin(), orders[0].end(), 0);
  auto add = [&](Order order, bool reversed) {
    if (reversed) std::reverse(order.begin(), order.end());
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(order);
  };
  add(LeastCut(graph, graph.next, graph.previous), false);
  add(LeastCut(graph, graph.previous, graph.next), true);
  add(DepthFirst(graph.next, graph.previous, true), false);
  add(DepthFirst(graph.next, graph.previous, false), false);
  add(DepthFirst(graph.previous, graph.next, false), true);
  add(ByDepth(graph.next, graph.previous), false);
  return orders;
}

}  // namespace pipewright
