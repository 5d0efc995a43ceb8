#include "plan/search/zb_auto.h"

#include <algorithm>

#include "base/error.h"
#include "plan/schedules/order_problem.h"
#include "plan/search/find_order.h"
#include "plan/search/placements.h"
#include "plan/search/recompute.h"

namespace pipewright {

namespace {

Plan ToPlan(const OrderProblem& p, const RankOrders& order) {
  Plan plan;
  plan.stages = p.stages;
  plan.microbatches = p.microbatches;
  plan.forward_only = p.forward_only;
  for (const auto& list : order) {
    auto& actions = plan.ranks.emplace_back();
    for (const Op& op : list) {
      Action action;
      action.kind = op.kind == OpKind::kF   ? ActionKind::kForward
                    : op.kind == OpKind::kI ? ActionKind::kInputGrad
                                            : ActionKind::kWeightGrad;
      action.stage = op.stage;
      action.microbatch = op.microbatch;
      actions.push_back(action);
    }
  }
  return plan;
}

// Returns each rank's actions, in any order.
RankOrders Every(const OrderProblem& p) {
  RankOrders order(p.ranks);
  for (int s = 0; s < p.stages; ++s)
    for (int m = 0; m < p.microbatches; ++m)
      for (OpKind kind : {OpKind::kF, OpKind::kI, OpKind::kW})
        if (kind == OpKind::kF || !p.forward_only) order[p.RankOf(s, m)].push_back({kind, s, m});
  return order;
}

// Returns a lower bound on the span for this map.
double SpanBound(const OrderProblem& p, const Costs& costs, double memory,
                 const std::vector<char>& recompute) {
  return BoundOf(ToPlan(p, Every(p)), costs, memory, 1, recompute).span;
}

constexpr size_t kChoices = 3;  // sets of recomputed stages to search

// About this many actions may be timed in all: a few seconds on one core.
constexpr long kEffort = 240'000'000;

// Chooses the map with the best quick orders, the one of the least bound among the next few, and
// the V, because quick orders tell little of what a long search finds on a map.
std::vector<StagePlacement> MapsToSearch(const Costs& costs, int ranks, int stages,
                                         int microbatches, const ZbAutoOptions& options) {
  std::vector<StagePlacement> maps =
      CandidateMaps(costs, ranks, stages, microbatches, options.memory, options.forward_only,
                    static_cast<long>(options.effort * kEffort) / 8, 8);
  if (maps.size() < 3) return maps;
  std::vector<StagePlacement> chosen = {maps[0]};
  double least = kNoLimit;
  for (size_t i = 1; i < maps.size(); ++i) {
    OrderProblem problem = MakeOrderProblem(costs, ranks, maps[i], microbatches, options.memory, {},
                                            options.forward_only);
    double bound = SpanBound(problem, costs, options.memory, {});
    if (bound >= least) continue;
    least = bound;
    chosen.resize(1);
    chosen.push_back(maps[i]);
  }
  StagePlacement v = ParsePlacement("v", ranks, stages);
  if (std::find(chosen.begin(), chosen.end(), v) == chosen.end()) chosen.push_back(v);
  return chosen;
}

// Throws Error naming the memory that one microbatch at a time needs on the worst rank of a
// placement. If the placement is free (`chosen`), another one may need less.
[[noreturn]] void DoesNotFit(const OrderProblem& p, double memory, const std::string& name,
                             const std::string& source, bool chosen) {
  int worst = 0;
  double most = 0;
  for (int r = 0; r < p.ranks; ++r) {
    double stored = 0, whole = 0;
    for (int s : p.held[r]) {
      const StageMemory& one = p.On(s, r).memory;
      stored = p.forward_only ? std::max(stored, one.stored) : stored + one.stored;
      whole = std::max(whole, one.whole - one.stored);
    }
    double need = stored + whole + memory - p.room[r];
    if (need > most) most = need, worst = r;
  }
  throw Error(name,
              "one microbatch at a time already needs " + Plain(most) + " on rank " +
                  std::to_string(worst) +
                  (chosen ? " of placement " + PlacementText(p.placement) : "") + ", more than " +
                  Plain(memory),
              "raise it, use more ranks" +
                  (p.forward_only ? std::string()
                                  : ", or let stages recompute (\"recompute\" in " + source + ")"));
}

}  // namespace

ZbAutoResult ZbAuto(const Costs& costs, int ranks, int stages, int microbatches,
                    const ZbAutoOptions& options) {
  CheckStages(costs, stages);
  if (ranks < 1 || microbatches < 1)
    throw Error("zb-auto", "ranks and microbatches must be at least 1");
  if (options.placement.empty() && stages < ranks)
    throw Error("--stages", std::to_string(stages) + " stages leave ranks without one",
                "use " + std::to_string(ranks) + " stages or more, or fewer ranks");
  if (!options.placement.empty()) CheckPlacement(options.placement, ranks);
  std::vector<StagePlacement> maps = {options.placement};
  if (options.placement.empty()) maps = MapsToSearch(costs, ranks, stages, microbatches, options);
  long effort = static_cast<long>(options.effort * kEffort);
  ZbAutoResult result;
  TimedOrder best;
  for (size_t i = 0; i < maps.size(); ++i) {
    auto choices =
        RecomputeChoices(costs, ranks, maps[i], microbatches,
                         options.forward_only ? kNoLimit : options.memory, effort / 8, kChoices);
    // The first map has two thirds of the effort.
    long share = maps.size() == 1 ? effort
                 : i == 0         ? effort / 3 * 2
                                  : effort / 3 / static_cast<long>(maps.size() - 1);
    share /= static_cast<long>(choices.size());
    for (const std::vector<char>& recompute : choices) {
      OrderProblem problem = MakeOrderProblem(costs, ranks, maps[i], microbatches, options.memory,
                                              recompute, options.forward_only);
      double bound = SpanBound(problem, costs, options.memory, recompute);
      if (best.times.ok && bound >= best.times.span) continue;
      TimedOrder found = FindOrder(problem, share, bound);
      if (!found.times.ok || (best.times.ok && !found.times.Better(best.times))) continue;
      result.plan = ToPlan(problem, found.order);
      result.placement = maps[i];
      result.recompute = recompute;
      best = std::move(found);
    }
  }
  if (!best.times.ok) {
    StagePlacement map = maps.empty() ? ParsePlacement("loop", ranks, stages) : maps[0];
    std::vector<char> again = RecomputeOffered(costs, stages);
    if (options.forward_only) again.clear();
    DoesNotFit(MakeOrderProblem(costs, ranks, map, microbatches, options.memory, again,
                                options.forward_only),
               options.memory, options.memory_name, costs.source, options.placement.empty());
  }
  result.makespan = best.times.makespan;
  result.span = best.times.span;
  for (size_t s = 0; s < result.recompute.size(); ++s)
    if (result.recompute[s]) result.plan.recompute.push_back(static_cast<int>(s));
  result.bound = BoundOf(result.plan, costs, options.memory, 1, result.recompute);
  result.any_map = result.bound.span;
  if (options.placement.empty())
    result.any_map = std::min(result.any_map, AnyMapBound(costs, ranks, stages, microbatches,
                                                          options.memory, options.forward_only));
  return result;
}

}  // namespace pipewright
