// ZB-H1 and ZB-H2 (Qi et al., 2401.10241, section 2) and ZB-V (Qi et al., 2405.15362, section 4).
#include <algorithm>

#include "plan/schedules/generators.h"
#include "plan/schedules/list_schedule.h"

namespace pipewright {

// `depth` = 1: 1F1B's warm-up and memory; 2: twice both, and no bubble inside.
static Plan Handcrafted(const ScheduleRequest& q, int depth) {
  if (!IsPlainPipeline(q.placement)) {
    ListPolicy policy;
    policy.split = true;
    std::vector<int> depths = PipelineDepths(q.placement);
    for (int d : depths) {
      policy.in_flight.push_back(depth * (d - 1) + 1);
      policy.weight_grads_held.push_back(depth * (depths[0] - d));
    }
    return ListSchedule(q.placement, q.ranks, q.microbatches, policy);
  }
  Plan plan;
  plan.ranks.resize(q.ranks);
  for (int r = 0; r < q.ranks; ++r) {
    auto& actions = plan.ranks[r];
    actions.reserve(3 * static_cast<size_t>(q.microbatches));
    int warmup = depth * (q.ranks - 1 - r), weights = 0, m = q.microbatches;
    for (int i = 0; i < std::min(warmup, m); ++i)
      actions.push_back(Compute(ActionKind::kForward, r, i));
    for (int i = 0; i < m; ++i) {
      if (warmup + i < m) actions.push_back(Compute(ActionKind::kForward, r, warmup + i));
      actions.push_back(Compute(ActionKind::kInputGrad, r, i));
      if (warmup + i >= depth * (q.ranks - 1))
        actions.push_back(Compute(ActionKind::kWeightGrad, r, weights++));
    }
    while (weights < m) actions.push_back(Compute(ActionKind::kWeightGrad, r, weights++));
  }
  return plan;
}

Plan ZeroBubbleH1(const ScheduleRequest& q) { return Handcrafted(q, 1); }
Plan ZeroBubbleH2(const ScheduleRequest& q) { return Handcrafted(q, 2); }

// Rank r holds stages r (down) and 2P - 1 - r (back). The order is made for at least 2P - 1
// microbatches; with fewer, the surplus is removed.
Plan ZeroBubbleV(const ScheduleRequest& q) {
  int p = q.ranks, m = std::max(q.microbatches, 2 * p - 1);
  Plan plan;
  plan.ranks.resize(p);
  for (int r = 0; r < p; ++r) {
    auto& actions = plan.ranks[r];
    actions.reserve(6 * static_cast<size_t>(m));
    int down = r, back = 2 * p - 1 - r;
    int forward_down = 0, forward_back = 0, input_down = 0, input_back = 0;
    auto add = [&](ActionKind kind, int stage, int& next) {
      actions.push_back(Compute(kind, stage, next++));
    };
    auto input_and_weight = [&](int stage, int& next) {
      actions.push_back(Compute(ActionKind::kInputGrad, stage, next));
      actions.push_back(Compute(ActionKind::kWeightGrad, stage, next++));
    };
    for (int k = 0; k < 2 * (p - r) - 1; ++k) add(ActionKind::kForward, down, forward_down);
    for (int k = 0; k < r; ++k) {
      add(ActionKind::kForward, back, forward_back);
      add(ActionKind::kForward, down, forward_down);
    }
    for (int k = 0; k < p - r; ++k) {
      add(ActionKind::kForward, back, forward_back);
      input_and_weight(back, input_back);
    }
    while (forward_back < forward_down || forward_down < m) {
      if (forward_down < m) add(ActionKind::kForward, down, forward_down);
      input_and_weight(down, input_down);
      add(ActionKind::kForward, back, forward_back);
      input_and_weight(back, input_back);
    }
    int weight_down = input_down, weight_back = input_back;
    for (int k = 0; k < r; ++k) {
      add(ActionKind::kInputGrad, down, input_down);
      add(ActionKind::kInputGrad, back, input_back);
    }
    for (int k = 0; k < p - r; ++k) {
      add(ActionKind::kInputGrad, down, input_down);
      add(ActionKind::kWeightGrad, down, weight_down);
    }
    while (weight_back < input_back) add(ActionKind::kWeightGrad, back, weight_back);
    while (weight_down < input_down) add(ActionKind::kWeightGrad, down, weight_down);
  }
  Trim(plan, q.stages, q.microbatches);
  return plan;
}

}  // namespace pipewright
