// GPipe (Huang et al., 1811.06965) and 1F1B (PipeDream-flush, Narayanan et al., 2006.09503; DAPPLE,
// Fan et al., 2007.01045).
#include <algorithm>

#include "plan/schedules/generators.h"
#include "plan/schedules/list_schedule.h"

namespace pipewright {

Plan Gpipe(const ScheduleRequest& q) {
  Plan plan;
  if (!IsPlainPipeline(q.placement)) {
    ListPolicy policy;
    policy.forwards_first = true;
    return ListSchedule(q.placement, q.ranks, q.microbatches, policy);
  }
  plan.ranks.resize(q.ranks);
  for (int r = 0; r < q.ranks; ++r) {
    for (int i = 0; i < q.microbatches; ++i)
      plan.ranks[r].push_back(Compute(ActionKind::kForward, r, i));
    for (int i = 0; i < q.microbatches; ++i)
      plan.ranks[r].push_back(Compute(ActionKind::kBackward, r, i));
  }
  return plan;
}

Plan OneForwardOneBackward(const ScheduleRequest& q) {
  if (!IsPlainPipeline(q.placement)) {
    ListPolicy policy;
    policy.in_flight = PipelineDepths(q.placement);
    return ListSchedule(q.placement, q.ranks, q.microbatches, policy);
  }
  Plan plan;
  plan.ranks.resize(q.ranks);
  for (int r = 0; r < q.ranks; ++r) {
    auto& actions = plan.ranks[r];
    actions.reserve(2 * static_cast<size_t>(q.microbatches));
    int warmup = std::min(q.ranks - 1 - r, q.microbatches);
    for (int i = 0; i < warmup; ++i) actions.push_back(Compute(ActionKind::kForward, r, i));
    for (int i = 0; i < q.microbatches; ++i) {
      if (warmup + i < q.microbatches)
        actions.push_back(Compute(ActionKind::kForward, r, warmup + i));
      actions.push_back(Compute(ActionKind::kBackward, r, i));
    }
  }
  return plan;
}

}  // namespace pipewright
