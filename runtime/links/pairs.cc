#include "runtime/links/pairs.h"

#include "plan/actions.h"

namespace pipewright {

static std::string TypeOf(const std::string& device) { return device.substr(0, device.find(':')); }

NcclPairs PairsOf(const Plan& plan, const StageGraph& graph,
                  const std::vector<std::string>& devices,
                  const std::vector<std::string>& visible) {
  NcclPairs pairs;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (const Action& action : plan.ranks[rank]) {
      if (!IsTransfer(action.kind)) continue;
      const size_t peer = static_cast<size_t>(RankOf(graph, PeerOf(action), action.microbatch));
      const bool same = visible[rank] == visible[peer];
      if (devices[rank] == "cpu" || TypeOf(devices[rank]) != TypeOf(devices[peer]) ||
          (same && devices[rank] == devices[peer]))
        continue;
      const int here = static_cast<int>(rank), there = static_cast<int>(peer);
      pairs.insert(IsSend(action.kind) ? std::pair(here, there) : std::pair(there, here));
    }
  return pairs;
}

}  // namespace pipewright
