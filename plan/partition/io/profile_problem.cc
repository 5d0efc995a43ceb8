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
  // Keeps items in the stage of their tuple, because tuples cannot be sent between stages.
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
    // The value, not the node, holds the bytes: once in each stage that makes or receives it.
    problem.nodes[place[i]].stash_bytes -= bytes;
    problem.values.push_back(
        {place[i], consumers[i], 2 * bytes / costs.bandwidth, 2, bytes, bytes});
  }
  return profile;
}

void SetStages(ModelGraph& graph, const ProfileProblem& profile, const PartitionResult& result) {
  for (int input : profile.inputs) graph.nodes[input].stage = 0;
  for (size_t s = 0; s < result.stages.size(); ++s)
    for (int node : result.stages[s].nodes)
      graph.nodes[profile.graph_node[node]].stage = static_cast<int>(s);
}

// Adds a value without transfers for each value that nodes hold in flight. Its bytes count once in
// the stage that makes it and in every other stage with a node that holds it.
static void AddHeldValues(const Profile& measured, PartitionProblem& problem) {
  std::vector<std::vector<int>> holders(measured.values.size());
  for (size_t i = 0; i < measured.nodes.size(); ++i)
    for (int value : measured.nodes[i].held) holders[value].push_back(static_cast<int>(i));
  for (size_t v = 0; v < measured.values.size(); ++v) {
    const ProfileValue& value = measured.values[v];
    if (holders[v].empty()) continue;
    PartitionValue held;
    held.transfers = 0;
    held.consumers = holders[v];
    held.stash_bytes = value.bytes;
    if (value.producer >= 0 && value.kept) {
      // An output may be a view of memory that is counted already.
      double& own = problem.nodes[value.producer].stash_bytes;
      own -= std::min(own, value.bytes);
      held.consumers.insert(held.consumers.begin(), value.producer);
    }
    problem.values.push_back(held);
  }
}

ProfileProblem ToProblem(const Profile& measured, const ProfileCosts& costs) {
  ProfileProblem profile;
  PartitionProblem& problem = profile.problem;
  problem.time_unit = "s";
  problem.transfer_latency = costs.latency;
  problem.exchange_time = 1 / costs.bandwidth;
  int inputs = 0;
  for (const ProfileValue& value : measured.values)
    if (value.producer < 0) profile.inputs.push_back(inputs++);
  for (const ProfileNode& node : measured.nodes) {
    profile.graph_node.push_back(inputs + static_cast<int>(problem.nodes.size()));
    PartitionNode entry;
    entry.name = node.name;
    double total = node.forward.median + node.backward.median;
    entry.device_time = entry.host_time = total;
    if (total > 0) entry.forward_share = node.forward.median / total;
    entry.static_bytes =
        node.parameters + node.trained * (1 + costs.optimizer_state) + node.buffers;
    entry.stash_bytes = node.kept;  // AddHeldValues subtracts values that others hold too
    entry.parameter_bytes = node.trained;
    problem.nodes.push_back(entry);
  }
  for (const ProfileValue& value : measured.values) {
    if (value.producer < 0 || value.consumers.empty()) continue;
    int transfers = value.gradient ? 2 : 1;
    problem.values.push_back({value.producer, value.consumers,
                              transfers * value.bytes / costs.bandwidth, transfers, value.bytes});
  }
  AddHeldValues(measured, problem);
  for (const ProfileShared& shared : measured.shared)
    problem.values.push_back(
        {-1, shared.nodes, 2 * shared.bytes / costs.bandwidth, 2, shared.bytes});
  return profile;
}

}  // namespace pipewright
