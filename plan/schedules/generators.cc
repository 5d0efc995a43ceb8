#include "plan/schedules/generators.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/simulate/compute_times.h"
#include "plan/stage_graph.h"

namespace pipewright {

bool IsPlainPipeline(const StagePlacement& placement) {
  for (size_t s = 0; s < placement.size(); ++s)
    if (placement[s] != std::vector<int>{static_cast<int>(s)}) return false;
  return true;
}

bool IsLoop(const StagePlacement& placement, int ranks) {
  for (size_t s = 0; s < placement.size(); ++s)
    if (placement[s] != std::vector<int>{static_cast<int>(s) % ranks}) return false;
  return static_cast<int>(placement.size()) >= ranks;
}

void Trim(Plan& plan, int stages, int microbatches) {
  bool trimmed = false;
  for (auto& actions : plan.ranks) {
    auto gone = [&](const Action& a) { return a.stage >= stages || a.microbatch >= microbatches; };
    auto end = std::remove_if(actions.begin(), actions.end(), gone);
    trimmed |= end != actions.end();
    actions.erase(end, actions.end());
  }
  plan.stages = stages;
  plan.microbatches = microbatches;
  if (trimmed) plan.layout = {};
}

Action Compute(ActionKind kind, int stage, int microbatch) {
  Action a;
  a.kind = kind, a.stage = stage, a.microbatch = microbatch;
  return a;
}

int64_t UnitEnd(const Plan& plan, const ScheduleRequest& q) {
  Plan whole = ComputeOnly(plan);
  whole.stages = q.stages, whole.microbatches = q.microbatches;
  StageGraph graph = ChainGraph(q.placement);
  try {
    int64_t end = 0;
    for (const auto& ends : UnitEnds(whole, graph)) end = std::max(end, ends.back());
    return end;
  } catch (const Error&) {
    return std::numeric_limits<int64_t>::max();
  }
}

}  // namespace pipewright
