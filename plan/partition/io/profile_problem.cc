#include "plan/partition/io/profile_problem.h"

#include "base/error.h"

namespace pipewright {

ProfileProblem ToProblem(const ModelGraph& graph, const ProfileCosts& costs) {
  ProfileProblem profile;
  PartitionProblem& problem = profile.problem;
  problem.time_unit = "s";
  problem.transfer_latency = costs.latency;
  problem.exchange_time = 1 / costs.bandwidth;
  int n = static_cast<int>(graph.nodes.size());
  std::vector<char> has_source(n, 0);
  for (auto [from, to] : graph.edges) has_source[to] = 1;
  std::vector<int> place(n, -1);
  for (int i = 0; i < n; ++i) {
    const GraphNode& node = graph.nodes[i];
    if (!has_source[i] && node.description.starts_with("Input")) {
      profile.inputs.push_back(i);
      continue;
    }
    place[i] = static_cast<int>(problem.nodes.size());
    profile.graph_node.push_back(i);
    PartitionNode entry;
    entry.name = node.id;
    entry.device_time = entry.host_time = (node.forward_ms + node.backward_ms) / 1000;
    double total_ms = node.forward_ms + node.backward_ms;
    if (total_ms > 0) entry.forward_share = node.forward_ms / total_ms;
    entry.static_bytes = node.parameter_bytes * (2 + costs.optimizer_state);
    entry.stash_bytes = node.OutputBytes();
    entry.parameter_bytes = node.parameter_bytes;
    problem.nodes.push_back(entry);
  }
  if (problem.nodes.empty()) throw Error("partition", "the graph has no node besides its inputs");
  // An item is taken where its tuple is made: tuples do not travel between stages.
  for (auto [from, to] : graph.edges) {
    if (place[from] < 0 || !graph.nodes[to].description.starts_with("__getitem__(")) continue;
    if (graph.nodes[from].description == "hidden") continue;
    PartitionNode& tuple = problem.nodes[place[from]];
    if (tuple.group < 0) tuple.group = place[from];
    problem.nodes[place[to]].group = tuple.group;
  }
  std::vector<std::vector<int>> consumers(n);
  for (auto [from, to] : graph.edges)
    if (place[from] >= 0) consumers[from].push_back(place[to]);
  for (int i = 0; i < n; ++i) {
    if (consumers[i].empty()) continue;
    double bytes = graph.nodes[i].OutputBytes();
    problem.values.push_back({place[i], consumers[i], 2 * bytes / costs.bandwidth, 2, bytes});
  }
  return profile;
}

void SetStages(ModelGraph& graph, const ProfileProblem& profile, const PartitionResult& result) {
  for (int input : profile.inputs) graph.nodes[input].stage = 0;
  for (size_t s = 0; s < result.stages.size(); ++s)
    for (int node : result.stages[s].nodes)
      graph.nodes[profile.graph_node[node]].stage = static_cast<int>(s);
}

}  // namespace pipewright
