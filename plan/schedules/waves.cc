// Chimera (Li and Hoefler, 2107.06925) and Hanayo (Liu et al., 2308.15762).
#include <algorithm>

#include "plan/schedules/generators.h"
#include "plan/schedules/list_schedule.h"

namespace pipewright {

// Repeats groups of P microbatches, half of them in each direction. If F and B each take 1, the
// j-th of a direction enters at 2j, its forward and backward run without a pause, and a new group
// starts every 2P. No two computes of a rank coincide.
Plan Chimera(const ScheduleRequest& q) {
  int p = q.ranks, half = p / 2, m = RoundUp(q.microbatches, p);
  Plan plan;
  plan.ranks.resize(p);
  for (int r = 0; r < p; ++r) {
    std::vector<std::pair<int, Action>> slots;
    for (int i = 0; i < m; ++i) {
      int direction = i % 2, j = i / 2;
      int stage = direction ? p - 1 - r : r;
      int start = 2 * p * (j / half) + 2 * (j % half);
      slots.push_back({start + stage, Compute(ActionKind::kForward, stage, i)});
      slots.push_back({start + 2 * p - 1 - stage, Compute(ActionKind::kBackward, stage, i)});
    }
    std::sort(slots.begin(), slots.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& slot : slots) plan.ranks[r].push_back(slot.second);
  }
  Trim(plan, q.stages, q.microbatches);
  return plan;
}

// Simulates 1F1B's rule for a placement that goes there and back several times. A limit of 2P - 1
// microbatches in flight per stage costs no time.
Plan Hanayo(const ScheduleRequest& q) {
  ListPolicy policy;
  policy.backward_from_first = true;
  policy.in_flight.assign(q.stages, 2 * q.ranks - 1);
  return ListSchedule(q.placement, q.ranks, q.microbatches, policy);
}

}  // namespace pipewright
