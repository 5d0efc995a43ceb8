#include <algorithm>

#include "plan/partition/io/profile_problem.h"

namespace pipewright {

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
    entry.stash_bytes = node.kept;
    entry.parameter_bytes = node.trained;
    problem.nodes.push_back(entry);
  }
  for (const ProfileValue& value : measured.values) {
    if (value.producer < 0 || value.consumers.empty()) continue;
    int transfers = value.gradient ? 2 : 1;
    problem.values.push_back({value.producer, value.consumers,
                              transfers * value.bytes / costs.bandwidth, transfers, value.bytes});
  }
  for (const ProfileShared& shared : measured.shared)
    problem.values.push_back(
        {-1, shared.nodes, 2 * shared.bytes / costs.bandwidth, 2, shared.bytes});
  return profile;
}

}  // namespace pipewright
