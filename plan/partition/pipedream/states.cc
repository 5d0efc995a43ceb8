#include "plan/partition/pipedream/states.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace pipewright {

namespace {

struct Relations {
  std::vector<std::vector<int>> next, previous;
  std::vector<Bits> ancestors;
  // The ancestors of each node with an edge to a node that is neither an ancestor nor the node.
  std::vector<Bits> used_elsewhere;
};

}  // namespace

static Relations Relate(const ModelGraph& graph, const std::vector<char>& removed) {
  int n = static_cast<int>(graph.nodes.size());
  Relations r;
  r.next.resize(n), r.previous.resize(n);
  for (auto [from, to] : graph.edges) {
    if (removed[from] || removed[to]) continue;
    r.next[from].push_back(to);
    r.previous[to].push_back(from);
  }
  r.ancestors.assign(n, MakeBits(n));
  for (int node : TopologicalOrder(n, graph.edges))
    for (int from : r.previous[node]) {
      Unite(r.ancestors[node], r.ancestors[from]);
      Insert(r.ancestors[node], from);
    }
  r.used_elsewhere.assign(n, MakeBits(n));
  for (int node = 0; node < n; ++node)
    ForEach(r.ancestors[node], [&](int from) {
      for (int to : r.next[from])
        if (to != node && !Has(r.ancestors[node], to)) Insert(r.used_elsewhere[node], from);
    });
  return r;
}

// Returns the members that no other member depends on.
static Bits Maximal(const Bits& state, const Relations& r) {
  Bits maximal = state;
  ForEach(state, [&](int node) {
    for (int from : r.previous[node]) Erase(maximal, from);
  });
  return maximal;
}

// Returns the reverse postorder of a depth-first walk from state 0, in the order of `children`.
static std::vector<int> DepthFirstOrder(const std::vector<std::vector<int>>& children) {
  std::vector<char> seen(children.size(), 0);
  std::vector<int> order;
  std::vector<std::pair<int, size_t>> stack = {{0, 0}};
  seen[0] = 1;
  while (!stack.empty()) {
    auto& [state, next] = stack.back();
    if (next == children[state].size()) {
      order.push_back(state);
      stack.pop_back();
      continue;
    }
    int child = children[state][next++];
    if (!seen[child]) {
      seen[child] = 1;
      stack.push_back({child, 0});
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

PipeDreamStates EnumeratePipeDreamStates(const ModelGraph& graph, int max_states) {
  int n = static_cast<int>(graph.nodes.size());
  PipeDreamStates states;
  std::vector<int> in(n, 0), out(n, 0);
  for (auto [from, to] : graph.edges) ++out[from], ++in[to];
  std::vector<char> removed(n, 0);
  for (int i = 0; i < n; ++i)
    if (!in[i] && graph.nodes[i].description.starts_with("Input")) {
      removed[i] = 1;
      states.inputs.push_back(i);
    }
  for (auto [from, to] : graph.edges)
    if (removed[from]) --in[to];
  for (int i = 0; i < n; ++i)
    if (!removed[i] && !out[i] && graph.nodes[i].description.starts_with("__getitem__")) {
      removed[i] = 1;
      states.unused.push_back(i);
    }
  int source = 0;
  while (source < n && (removed[source] || in[source])) ++source;
  if (source == n) throw Error("partition", "the graph has no node besides its inputs");

  Relations r = Relate(graph, removed);
  std::vector<Bits> found = {MakeBits(n)};
  Insert(found[0], source);
  std::unordered_map<Bits, int, BitsHash> ids = {{found[0], 0}};
  std::vector<std::vector<int>> children;
  std::vector<double> output_bytes;
  for (size_t s = 0; s < found.size(); ++s) {
    Bits state = found[s], maximal = Maximal(state, r), augmented = MakeBits(n);
    ForEach(maximal, [&](int node) { Unite(augmented, r.used_elsewhere[node]); });
    children.emplace_back();
    output_bytes.push_back(0);
    auto visit = [&](int node) {
      output_bytes[s] += graph.nodes[node].OutputBytes();
      for (int to : r.next[node]) {
        if (Has(state, to)) continue;
        Bits child = state;
        Unite(child, r.ancestors[to]);
        Insert(child, to);
        auto [id, added] = ids.emplace(child, static_cast<int>(found.size()));
        if (added) found.push_back(child);
        children[s].push_back(id->second);
      }
    };
    ForEach(augmented, visit);
    ForEach(maximal, visit);
    if (static_cast<int>(found.size()) > max_states)
      throw Error(
          "partition",
          "the graph has more than " + std::to_string(max_states) + " states to cut between",
          "use --mode exact or --mode fast");
  }
  for (int s : DepthFirstOrder(children)) {
    double compute = 0, activations = 0, parameters = 0;
    ForEach(found[s], [&](int i) {
      const GraphNode& node = graph.nodes[i];
      compute += (node.forward_ms + node.backward_ms) / 1000.0;
      activations += node.OutputBytes();
      parameters += node.parameter_bytes;
    });
    states.nodes.push_back(found[s]);
    states.compute_s.push_back(compute);
    states.activation_bytes.push_back(activations);
    states.parameter_bytes.push_back(parameters);
    states.output_bytes.push_back(output_bytes[s]);
  }
  return states;
}

}  // namespace pipewright
