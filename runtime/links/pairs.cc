#include "runtime/links/pairs.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "plan/actions.h"

namespace pipewright {

static std::string TypeOf(const std::string& device) { return device.substr(0, device.find(':')); }

RankPairs PlanPairs(const Plan& plan, const StageGraph& graph) {
  RankPairs pairs;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (const Action& action : plan.ranks[rank]) {
      if (!IsTransfer(action.kind)) continue;
      const int here = static_cast<int>(rank),
                there = RankOf(graph, PeerOf(action), action.microbatch);
      pairs.insert(IsSend(action.kind) ? std::pair(here, there) : std::pair(there, here));
    }
  return pairs;
}

RankPairs PairsOverNccl(const RankPairs& pairs, const std::vector<std::string>& devices,
                        const std::vector<std::string>& visible) {
  RankPairs found;
  for (const auto& [sender, receiver] : pairs) {
    const size_t a = static_cast<size_t>(sender), b = static_cast<size_t>(receiver);
    const bool one_device = visible[a] == visible[b] && devices[a] == devices[b];
    if (devices[a] != "cpu" && TypeOf(devices[a]) == TypeOf(devices[b]) && !one_device)
      found.insert({{sender, receiver}, {receiver, sender}});
  }
  return found;
}

void CheckConnections(const RankPairs& pairs, int connections) {
  std::map<int, int> streams;
  for (const auto& [sender, receiver] : pairs) ++streams[sender], ++streams[receiver];
  for (const auto& [rank, count] : streams) {
    const int needed = 2 * count + 3;  // also for computations, sums of gradients, copies
    if (needed <= connections) continue;
    throw Error("NCCL",
                "rank " + std::to_string(rank) + " exchanges values with others in " +
                    Counted(count, "direction") + " and needs " + std::to_string(needed) +
                    " connections to its device, where CUDA_DEVICE_MAX_CONNECTIONS gives " +
                    std::to_string(connections),
                needed <= 32
                    ? "set CUDA_DEVICE_MAX_CONNECTIONS to " + std::to_string(needed) +
                          " or more, or do not set it"
                    : "CUDA has at most 32: send values through host memory (--links mpi)");
  }
}

}  // namespace pipewright
