#include "plan/lowering/reduce_order.h"

#include <algorithm>
#include <set>

namespace pipewright {

std::vector<ReduceExchange> ReduceExchanges(const StageGraph& graph) {
  std::vector<ReduceExchange> exchanges;
  auto add = [&](std::vector<int> stages) {
    std::set<int> ranks;
    for (int s : stages) ranks.insert(graph.ranks_of[s].begin(), graph.ranks_of[s].end());
    exchanges.push_back({std::move(stages), {ranks.begin(), ranks.end()}});
  };
  for (const auto& group : graph.shared)
    if (!group.empty()) add(group);
  for (int s = 0; s < graph.stages; ++s)
    if (graph.ranks_of[s].size() > 1) add({s});
  return exchanges;
}

std::vector<std::vector<int>> ReduceOrder(const StageGraph& graph) {
  std::vector<std::vector<int>> order(graph.ranks);
  std::vector<char> placed(graph.stages);
  for (const ReduceExchange& exchange : ReduceExchanges(graph))
    for (int s : exchange.stages) {
      if (placed[s]) continue;
      placed[s] = true;
      for (int r : graph.ranks_of[s]) order[r].push_back(s);
    }
  return order;
}

}  // namespace pipewright
