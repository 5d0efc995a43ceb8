#include "runtime/links/pairs.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "plan/actions.h"
#include "runtime/nccl/cuda_environment.h"

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
                        const std::vector<std::string>& ids) {
  RankPairs found;
  for (const auto& [sender, receiver] : pairs) {
    const size_t a = static_cast<size_t>(sender), b = static_cast<size_t>(receiver);
    if (devices[a] != "cpu" && TypeOf(devices[a]) == TypeOf(devices[b]) && ids[a] != ids[b])
      found.insert({{sender, receiver}, {receiver, sender}});
  }
  return found;
}

// Returns to how many of the pairs and sums each rank belongs.
static std::map<int, int> Links(const DevicePeers& peers) {
  std::map<int, int> links;
  for (const auto& [sender, receiver] : peers.pairs) ++links[sender], ++links[receiver];
  for (const std::vector<int>& ranks : peers.sums)
    for (int rank : ranks) ++links[rank];
  return links;
}

// Also for computations, sums of gradients, and copies.
static int Needed(int links) { return 2 * links + 3; }

int ConnectionsNeeded(const DevicePeers& peers) {
  int most = 0;
  for (const auto& [rank, count] : Links(peers)) most = std::max(most, Needed(count));
  return most;
}

void CheckConnections(const DevicePeers& peers, int connections) {
  for (const auto& [rank, count] : Links(peers)) {
    const int needed = Needed(count);
    if (needed <= connections) continue;
    throw Error("NCCL",
                "rank " + std::to_string(rank) + " has " + Counted(count, "link") +
                    " (one for each rank that it sends to or receives from, and for each list of "
                    "ranks that add gradients) and needs " +
                    std::to_string(needed) +
                    " connections to its device, where CUDA_DEVICE_MAX_CONNECTIONS gives " +
                    std::to_string(connections),
                needed <= kMostConnections
                    ? "set CUDA_DEVICE_MAX_CONNECTIONS to " + std::to_string(needed) +
                          " or more, or do not set it"
                    : "CUDA has at most " + std::to_string(kMostConnections) +
                          ": send values through host memory (--links mpi)");
  }
}

}  // namespace pipewright
