#include "plan/partition/pipedream/codegen/stage_program.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"

namespace pipewright {

namespace {

using Names = std::vector<std::string>;

struct Builder : StageProgram {
  const std::vector<Names>& shared;

  bool Less(int a, int b) const { return NumericIdLess(graph.nodes[a].id, graph.nodes[b].id); }
  void Sort(std::vector<int>& nodes) const {
    std::sort(nodes.begin(), nodes.end(), [&](int a, int b) { return Less(a, b); });
  }
  void Prepare();
  void NumberStages();
  void FindShared();
  void FindEnds();
};

}  // namespace

// Numbers the graph's stages from 0 without gaps.
void Builder::NumberStages() {
  std::set<int> used;
  bool missing = false;
  int example = -1;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (kind[i] == NodeKind::kInput || dropped[i] || none[i]) continue;
    if (graph.nodes[i].stage < 0)
      missing = true, example = static_cast<int>(i);
    else
      used.insert(graph.nodes[i].stage);
  }
  // A stage may have only inputs, which it passes on.
  for (const GraphNode& node : graph.nodes)
    if (node.stage >= 0 && !missing) used.insert(node.stage);
  if (missing && !used.empty())
    throw Error(Where(example), "has no stage, others have",
                "partition the graph: pipewright partition GRAPH -o DIR");
  std::vector<int> dense(used.begin(), used.end());
  if (!dense.empty() && dense.back() >= static_cast<int>(dense.size()))
    notes.push_back("stages are renumbered 0 to " + std::to_string(dense.size() - 1) +
                    ": some of the graph's, up to " + std::to_string(dense.back()) +
                    ", have no node");
  stages = std::max<int>(1, static_cast<int>(dense.size()));
  stage_of.assign(graph.nodes.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].stage >= 0 && !dense.empty())
      stage_of[i] = static_cast<int>(
          std::lower_bound(dense.begin(), dense.end(), graph.nodes[i].stage) - dense.begin());
  // Keeps items in the stage of their tuple, because tuples cannot be sent between stages.
  for (int node : order)
    if (graph.nodes[node].description.starts_with("__getitem__(") && arguments[node].size() == 1 &&
        kind[arguments[node][0]] != NodeKind::kInput)
      stage_of[node] = std::min(stage_of[node], stage_of[arguments[node][0]]);
  for (auto [from, to] : graph.edges) {
    if (kind[from] == NodeKind::kInput || dropped[to] || none[from]) continue;
    if (stage_of[from] > stage_of[to])
      throw Error(Where(to),
                  "is in stage " + std::to_string(stage_of[to]) + " but uses node " +
                      graph.nodes[from].id + " of stage " + std::to_string(stage_of[from]),
                  "a stage may only use values of itself and of earlier stages");
  }
}

void Builder::Prepare() {
  int n = static_cast<int>(graph.nodes.size());
  arguments = Arguments(graph);
  users.resize(n);
  kind.resize(n);
  for (int i = 0; i < n; ++i) {
    kind[i] = KindOf(graph.nodes[i].description);
    if (kind[i] == NodeKind::kInput && !arguments[i].empty()) kind[i] = NodeKind::kModule;
    for (int from : arguments[i]) users[from].push_back(i);
  }
  // Sorts nodes in numeric order as far as the edges allow.
  std::vector<int> rank(n), by_rank(n);
  std::iota(by_rank.begin(), by_rank.end(), 0);
  std::stable_sort(by_rank.begin(), by_rank.end(), [&](int a, int b) { return Less(a, b); });
  for (int r = 0; r < n; ++r) rank[by_rank[r]] = r;
  std::vector<std::pair<int, int>> edges;
  for (auto [from, to] : graph.edges) edges.push_back({rank[from], rank[to]});
  for (int r : TopologicalOrder(n, edges)) order.push_back(by_rank[r]);

  dropped.assign(n, 0);
  none.assign(n, 0);
  for (int node : order) {
    bool item = graph.nodes[node].description.starts_with("__getitem__");
    none[node] = kind[node] == NodeKind::kHidden ||
                 (item && arguments[node].size() == 1 && none[arguments[node][0]]);
  }
  for (size_t i = order.size(); i-- > 0;) {
    int node = order[i];
    bool used = std::any_of(users[node].begin(), users[node].end(),
                            [&](int user) { return !dropped[user]; });
    dropped[node] =
        !used && (none[node] || (kind[node] == NodeKind::kOperation &&
                                 graph.nodes[node].description.starts_with("__getitem__")));
  }
  bool assumed = false;
  if (!graph.arguments_ordered)
    for (int i = 0; i < n; ++i)
      assumed = assumed ||
                (arguments[i].size() > 1 && (kind[i] == NodeKind::kModule ||
                                             graph.nodes[i].description.starts_with("Concat")));
  if (assumed)
    notes.push_back(
        "the profile has lost the order in which nodes take their arguments (Concat and others): "
        "they are taken in numeric node order");
}

void Builder::FindShared() {
  int n = static_cast<int>(graph.nodes.size());
  module_of.resize(n);
  std::iota(module_of.begin(), module_of.end(), 0);
  auto root = [&](int node) {
    while (module_of[node] != node) node = module_of[node] = module_of[module_of[node]];
    return node;
  };
  std::map<std::string, int> first, by_id;
  for (int node : order) {
    by_id[graph.nodes[node].id] = node;
    if (kind[node] != NodeKind::kModule) continue;
    const GraphNode& g = graph.nodes[node];
    auto [owner, added] = first.emplace(g.description, node);
    // A profile counts a module's parameters at its first use only.
    if (!added && g.parameter_bytes == 0 && graph.nodes[owner->second].parameter_bytes > 0)
      module_of[node] = owner->second;
    if (!added && g.parameter_bytes > 0 && graph.nodes[owner->second].parameter_bytes == 0)
      owner->second = node;
  }
  for (const Names& group : shared) {
    int owner = -1;
    for (const std::string& id : group) {
      auto found = by_id.find(id);
      if (found == by_id.end()) throw UsageError("--shared", "there is no node " + id);
      const int node = found->second;
      if (kind[node] != NodeKind::kModule)
        throw UsageError("--shared",
                         "node " + id + " is not a layer, but " + graph.nodes[node].description);
      if (owner >= 0 && graph.nodes[node].description != graph.nodes[owner].description)
        throw UsageError("--shared", "nodes " + graph.nodes[owner].id + " and " + id +
                                         " are different layers: " +
                                         graph.nodes[owner].description + ", " +
                                         graph.nodes[node].description);
      if (owner >= 0) module_of[root(node)] = root(owner);
      owner = node;
    }
  }
  // The first use in the first stage that uses a module holds it.
  std::vector<int> holder(n, -1);
  for (int node : order) {
    int& held_by = holder[root(node)];
    if (held_by < 0 || stage_of[node] < stage_of[held_by]) held_by = node;
  }
  std::vector<int> held(n);
  for (int node = 0; node < n; ++node) held[node] = holder[root(node)];
  module_of = std::move(held);
}

void Builder::FindEnds() {
  members.resize(stages), inputs.resize(stages), outputs.resize(stages);
  takes.resize(stages), gives.resize(stages);
  Names wire(graph.nodes.size());  // by value: its latest name
  std::vector<int> all_inputs;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (kind[i] == NodeKind::kInput) all_inputs.push_back(static_cast<int>(i));
  Sort(all_inputs);
  for (int node : all_inputs) {
    wire[node] = "input" + std::to_string(model_inputs.size());
    model_inputs.push_back(wire[node]);
  }
  for (int node : order)
    if (!dropped[node] && !none[node] && kind[node] != NodeKind::kInput)
      members[stage_of[node]].push_back(node);
  int count = 0;
  for (int s = 0; s < stages; ++s) {
    std::set<int> needed;
    for (int node : members[s]) {
      for (int from : arguments[node])
        if (!none[from] && (kind[from] == NodeKind::kInput || stage_of[from] != s))
          needed.insert(from);
      int used = 0, used_elsewhere = 0;
      for (int user : users[node]) {
        used += !dropped[user];
        used_elsewhere += !dropped[user] && stage_of[user] != s;
      }
      if (!used || used_elsewhere) outputs[s].push_back(node);
    }
    inputs[s].assign(needed.begin(), needed.end());
    // A stage that has only inputs passes them on; later stages then take them from it.
    if (members[s].empty())
      for (int node : all_inputs)
        if (stage_of[node] == s) inputs[s].push_back(node), outputs[s].push_back(node);
    if (outputs[s].empty())
      throw Error(path, "stage " + std::to_string(s) + " has nothing to compute or pass on",
                  "give it a layer: items of a tuple are taken in the stage that makes it");
    Sort(inputs[s]);
    Sort(outputs[s]);
    for (int node : inputs[s]) takes[s].push_back(wire[node]);
    for (int node : outputs[s]) {
      wire[node] = "out" + std::to_string(count++);
      gives[s].push_back(wire[node]);
      if (std::all_of(users[node].begin(), users[node].end(),
                      [&](int user) { return dropped[user]; }))
        model_outputs.push_back(wire[node]);
    }
  }
}

StageProgram MakeStageProgram(const ModelGraph& graph, const std::vector<Names>& shared,
                              const std::string& path) {
  Builder builder{{graph, path, 0, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}},
                  shared};
  builder.Prepare();
  builder.NumberStages();
  builder.FindShared();
  builder.FindEnds();
  return builder;
}

}  // namespace pipewright
