// Declares the generators behind MakeSchedule; plan/schedules/table.cc names them.
#pragma once
#include "plan/plan.h"
#include "plan/schedules/table.h"

namespace pipewright {

// Returns stage s on rank s alone.
bool IsPlainPipeline(const StagePlacement& placement);
// Returns stage s on rank s mod P alone.
bool IsLoop(const StagePlacement& placement, int ranks);

Action Compute(ActionKind kind, int stage, int microbatch);

// Removes the stages and microbatches from these numbers on, and idle cells. The rest of a valid
// order is valid: no action that stays waits for one that is removed.
void Trim(Plan& plan, int stages, int microbatches);

// Returns the time at which the last rank ends if F, I and W take 1, B takes 2 and transfers take
// no time; the largest number if the order deadlocks.
int64_t UnitEnd(const Plan& plan, const ScheduleRequest& request);

// Returns the least multiple of `n` that is at least `value`.
inline int RoundUp(int value, int n) { return (value + n - 1) / n * n; }

Plan Gpipe(const ScheduleRequest& request);
Plan OneForwardOneBackward(const ScheduleRequest& request);
Plan Interleaved(const ScheduleRequest& request);
Plan BreadthFirst(const ScheduleRequest& request);
Plan LoopedBreadthFirst(const ScheduleRequest& request);
Plan ZeroBubbleH1(const ScheduleRequest& request);
Plan ZeroBubbleH2(const ScheduleRequest& request);
Plan InterleavedZeroBubble(const ScheduleRequest& request);
Plan ZeroBubbleV(const ScheduleRequest& request);
Plan VHalf(const ScheduleRequest& request);
Plan VMin(const ScheduleRequest& request);
Plan DualPipe(const ScheduleRequest& request);
Plan DualPipeV(const ScheduleRequest& request);
Plan Chimera(const ScheduleRequest& request);
Plan Hanayo(const ScheduleRequest& request);

}  // namespace pipewright
