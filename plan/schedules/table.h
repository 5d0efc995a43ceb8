// The one table of all schedules: what each is called, who makes it, and what sets it apart. A new
// schedule is a line here; nothing else compares names.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/schedules/schedule.h"

namespace pipewright {

// Every generator gets this: numbers that it admits, a placement that is complete and in range.
struct ScheduleRequest {
  int ranks = 0, stages = 0, microbatches = 0;
  StagePlacement placement;
};

// A schedule is defined for these numbers of stages and microbatches.
enum class ScheduleShape {
  kAny,          // any placement
  kV,            // two stages a rank, there and back
  kDualV,        // the same, and at least as many microbatches as stages
  kTwoWays,      // one stage a rank, each on two ranks; an even number of ranks and microbatches
  kDualTwoWays,  // the same, and at least two microbatches a rank
  kWaves,        // an even number of stages a rank, there and back
};

struct ScheduleKind {
  const char* name = "";
  Plan (*make)(const ScheduleRequest&) = nullptr;  // null: it takes more than numbers
  ScheduleShape shape = ScheduleShape::kAny;
  const char* placement = "loop";  // by itself
  int stages_per_rank = 1;         // by itself
  bool splits_backward = false;  // into I and W, of which only I holds up other stages
  bool searched = false;         // made from costs, within a memory limit (plan/search/zb_auto.h)
  bool asynchronous = false;     // steps overlap (plan/multi_step.h)
  int weight_versions = 1;       // that a stage keeps; 0: one for every microbatch in flight
};

const std::vector<ScheduleKind>& Schedules();
// Null where no schedule has this name.
const ScheduleKind* FindSchedule(const std::string& name);

}  // namespace pipewright
