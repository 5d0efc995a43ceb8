// The generators behind MakeSchedule: every name of the table in plan/schedule.cc.
#pragma once
#include "plan/plan.h"
#include "plan/schedule.h"

namespace pipewright {

// What every generator gets: a placement that is complete and in range, with no idle rank.
struct ScheduleRequest {
  std::string name;
  int ranks = 0, stages = 0, microbatches = 0;
  Placement placement;
  const ScheduleOptions* options = nullptr;
};

// Stage s on rank s alone.
bool IsPlainPipeline(const Placement& placement);
// Stage s on rank s mod P alone, with v * P stages.
bool IsLoop(const Placement& placement, int ranks);
bool HasReplicas(const Placement& placement);

Action Compute(ActionKind kind, int stage, int microbatch);

Plan Gpipe(const ScheduleRequest& request);
Plan OneForwardOneBackward(const ScheduleRequest& request);

}  // namespace pipewright
