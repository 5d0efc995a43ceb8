#include "plan/schedules/list_schedule.h"

#include <algorithm>

#include "plan/schedules/dispatch.h"
#include "plan/schedules/generators.h"
#include "plan/simulate/lower_bound.h"

namespace pipewright {

namespace {

// Counts what one rank has run of one of its stages.
struct Track {
  int stage = 0, stride = 1;                  // it runs every stride-th microbatch
  int forward = 0, backward = 0, weight = 0;  // the next microbatch of each kind
};

// Backwards that are not split are I that take 2.
struct Chooser : DispatchRule {
  const ListPolicy& policy;
  int microbatches;
  std::vector<std::vector<Track>> tracks;  // [rank], stages ascending
  std::vector<int> forwards_left;          // [rank]

  Chooser(const ListPolicy& policy, int microbatches, int ranks)
      : policy(policy), microbatches(microbatches), tracks(ranks), forwards_left(ranks) {}

  bool MayForward(const Track& t) const {
    return t.forward < microbatches &&
           (policy.in_flight.empty() ||
            (t.forward - t.backward) / t.stride < policy.in_flight[t.stage]);
  }

  // Returns true if a W must come before anything else, because too many wait.
  bool WeightDue(const Track& t) const {
    return policy.split && t.weight < t.backward && !policy.weight_grads_held.empty() &&
           (t.backward - t.weight) / t.stride > policy.weight_grads_held[t.stage];
  }

  double Choose(const DispatchState& state, int rank, double now, Op& op) {
    double soon = kNever;
    auto ready = [&](const std::vector<double>& inputs, int stage, int microbatch) {
      double at = inputs[state.p.At(stage, microbatch)];
      if (at > now) soon = std::min(soon, at);
      return at <= now;
    };
    auto take = [&](OpKind kind, const Track& t, int& next) {
      op = {kind, t.stage, next};
      next += t.stride;
      return now;
    };
    auto& own = tracks[rank];
    for (Track& t : own)
      if (WeightDue(t)) return take(OpKind::kW, t, t.weight);
    bool backward = !policy.forwards_first || forwards_left[rank] == 0;
    for (size_t n = 0; backward && n < own.size(); ++n) {
      Track& t = own[policy.backward_from_first ? n : own.size() - 1 - n];
      if (t.backward < t.forward && ready(state.backward, t.stage, t.backward))
        return take(OpKind::kI, t, t.backward);
    }
    for (size_t k = own.size(); k-- > 0;)
      if (MayForward(own[k]) && ready(state.forward, own[k].stage, own[k].forward)) {
        --forwards_left[rank];
        return take(OpKind::kF, own[k], own[k].forward);
      }
    for (Track& t : own)
      if (policy.split && t.weight < t.backward) return take(OpKind::kW, t, t.weight);
    return soon;
  }

  bool Complete() const { return true; }  // the caller checks only the order
};

}  // namespace

Plan ListSchedule(const StagePlacement& placement, int ranks, int microbatches,
                  const ListPolicy& policy) {
  Costs costs = UnitCosts();
  if (!policy.split) costs.stages[0].I = costs.stages[0].B;
  OrderProblem problem =
      MakeOrderProblem(costs, ranks, placement, microbatches, kNoLimit, {}, false);
  Chooser chooser(policy, microbatches, ranks);
  for (size_t s = 0; s < placement.size(); ++s) {
    int r = static_cast<int>(placement[s].size());
    for (int k = 0; k < r; ++k) {
      chooser.tracks[placement[s][k]].push_back({static_cast<int>(s), r, k, k, k});
      chooser.forwards_left[placement[s][k]] += (microbatches - k + r - 1) / r;
    }
  }
  ActionKind backward = policy.split ? ActionKind::kInputGrad : ActionKind::kBackward;
  Plan plan;
  plan.stages = problem.stages;
  plan.microbatches = microbatches;
  for (const auto& list : Dispatch(problem, chooser).order) {
    auto& actions = plan.ranks.emplace_back();
    for (const Op& op : list)
      actions.push_back(Compute(op.kind == OpKind::kF   ? ActionKind::kForward
                                : op.kind == OpKind::kI ? backward
                                                        : ActionKind::kWeightGrad,
                                op.stage, op.microbatch));
  }
  return plan;
}

std::vector<int> PipelineDepths(const StagePlacement& placement) {
  std::vector<int> depths(placement.size());
  int replicas = 0;
  for (size_t s = placement.size(); s-- > 0;) {
    int own = static_cast<int>(placement[s].size());
    if (s + 1 == placement.size() || placement[s] != placement[s + 1]) replicas += own;
    depths[s] = (replicas + own - 1) / own;
  }
  return depths;
}

}  // namespace pipewright
