#include "plan/schedules/order_problem.h"

#include <algorithm>

namespace pipewright {

OrderProblem MakeOrderProblem(const Costs& costs, int ranks, const StagePlacement& placement,
                              int microbatches, double memory, const std::vector<char>& recompute,
                              bool forward_only) {
  OrderProblem p;
  p.ranks = ranks;
  p.stages = static_cast<int>(placement.size());
  p.microbatches = microbatches;
  p.forward_only = forward_only;
  p.placement = placement;
  p.held.resize(ranks);
  p.room.assign(ranks, memory);
  std::vector<double> moment(ranks, 0);
  for (int s = 0; s < p.stages; ++s) {
    p.one_rank_each &= placement[s].size() == 1;
    p.first.push_back(p.costs.size());
    for (int r : placement[s]) {
      const StageCosts& c = CostsOf(costs, s, r);
      bool again = !recompute.empty() && recompute[s] && c.recompute >= 0;
      p.held[r].push_back(s);
      const StageMemory held = StageMemoryOf(c, again);
      p.room[r] -= c.weights + c.gradients;
      moment[r] = std::max(moment[r], Moment(c, held));
      p.costs.push_back({c.F, c.I + (again ? c.recompute : 0), c.W, held});
    }
    p.links.push_back(p.up.size());
    for (int a : placement[s])
      for (int b : s + 1 < p.stages ? placement[s + 1] : std::vector<int>{a}) {
        const EdgeCosts edge = EdgeCostsOf(costs, s, s + 1, a);
        p.up.push_back(TransferTime(costs, a, b, edge.bytes));
        p.down.push_back(TransferTime(costs, b, a, edge.back));
      }
  }
  for (int r = 0; r < ranks; ++r) p.room[r] -= moment[r];
  return p;
}

const OpCosts& OrderProblem::On(int stage, int rank) const {
  size_t replica = 0;
  while (placement[stage][replica] != rank) ++replica;
  return costs[first[stage] + replica];
}

bool OrderTimes::Better(const OrderTimes& than) const {
  if (ok != than.ok) return ok;
  double least = 1e-9 * (span + than.span);  // smaller differences are due to rounding
  if (span < than.span - least) return true;
  if (span > than.span + least) return false;
  if (total < than.total - least) return true;
  if (total > than.total + least) return false;
  return makespan < than.makespan - least;
}

void OrderTimes::Add(double start, double end) {
  span = std::max(span, end - start);
  total += end - start;
  makespan = std::max(makespan, end);
}

}  // namespace pipewright
