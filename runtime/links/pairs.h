// Finds the ranks between which values can travel over NCCL.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/stage_graph.h"
#include "runtime/links/nccl_transport.h"

namespace pipewright {

// Returns the pairs of ranks that exchange messages in the plan and compute on different devices of
// one type. NCCL refuses two ranks on one device. `devices`: "cpu" or "cuda:0", by rank;
// `visible`: VisibleDevices of runtime/rank_device.h.
NcclPairs PairsOf(const Plan& plan, const StageGraph& graph,
                  const std::vector<std::string>& devices, const std::vector<std::string>& visible);

}  // namespace pipewright
