// Has the table of all schedules: name, generator and properties. A new schedule is one line here;
// no other code compares names.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/schedules/schedule.h"

namespace pipewright {

// Holds the input of a generator: numbers that it accepts, and a placement that is complete and in
// range.
struct ScheduleRequest {
  int ranks = 0, stages = 0, microbatches = 0;
  StagePlacement placement;
};

// The numbers of stages and microbatches that a schedule accepts.
enum class ScheduleShape {
  kAny,          // any placement
  kV,            // two stages per rank, there and back
  kDualV,        // the same, and at least as many microbatches as stages
  kTwoWays,      // one stage per rank, each on two ranks; an even number of ranks and microbatches
  kDualTwoWays,  // the same, and at least two microbatches per rank
  kWaves,        // an even number of stages per rank, there and back
};

// The schedule of runs that name none.
inline constexpr char kDefaultSchedule[] = "1f1b";
// That of runs without a backward, in which all schedules are the same; and the one that loads
// offloaded weights once for all microbatches.
inline constexpr char kForwardSchedule[] = "gpipe", kOffloadedForwardSchedule[] = "bfs";

// The orders of plain pipelines that the search for a partition knows.
enum class ScheduleOrder {
  kOther,
  kForwardsFirst,  // a stage holds all microbatches
  kAlternating,    // a stage holds as many microbatches as stages follow, and itself
};

struct ScheduleKind {
  const char* name = "";
  Plan (*make)(const ScheduleRequest&) = nullptr;  // null: needs more than numbers
  ScheduleShape shape = ScheduleShape::kAny;
  const char* placement = "loop";  // default
  int stages_per_rank = 1;         // default
  bool splits_backward = false;    // into I and W; other stages wait only for I
  bool searched = false;         // made from costs, within a memory limit (plan/search/zb_auto.h)
  bool asynchronous = false;     // steps overlap (plan/multi_step.h)
  int weight_versions = 1;         // number that a stage keeps; 0: one for every microbatch in flight
  ScheduleOrder order = ScheduleOrder::kOther;
  int search_start = 0;  // the search of zb-auto starts from it, in this place; 0: it does not
};

const std::vector<ScheduleKind>& Schedules();
// Returns null if no schedule has this name.
const ScheduleKind* FindSchedule(const std::string& name);
// Returns kOther if no schedule has this name.
ScheduleOrder OrderOf(const std::string& name);
// Returns the schedules from which the search of zb-auto starts, in order.
std::vector<const ScheduleKind*> SearchStarts();

}  // namespace pipewright
