// Finds the ranks between which values can travel over NCCL.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/stage_graph.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Returns the pairs of ranks that exchange messages in the plan.
RankPairs PlanPairs(const Plan& plan, const StageGraph& graph);

// Returns those of the pairs that compute on different devices of one type, in both directions.
// NCCL refuses two ranks on one device. `devices`: "cpu" or "cuda:0", by rank; `ids`: DeviceId of
// runtime/rank_device.h.
RankPairs PairsOverNccl(const RankPairs& pairs, const std::vector<std::string>& devices,
                        const std::vector<std::string>& ids);

// Returns how many streams must run independently of each other on the device of one rank, at most:
// two for each of its pairs and sums, one of which is NCCL's own, and three others.
int ConnectionsNeeded(const DevicePeers& peers);

// Throws Error if these are more than `connections`, which is CUDA_DEVICE_MAX_CONNECTIONS.
void CheckConnections(const DevicePeers& peers, int connections);

}  // namespace pipewright
