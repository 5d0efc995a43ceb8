// Lists all schedules: name, generator and properties. A new schedule is one line here; no other
// code compares names.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/schedules/schedule.h"

namespace pipewright {

// The input of a generator: numbers that it accepts, and a placement that is complete and in range.
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

// The schedule of runs that do not name one.
inline constexpr char kDefaultSchedule[] = "1f1b";
// The schedule that is searched for costs, and not made from numbers alone.
inline constexpr char kSearchedSchedule[] = "zb-auto";
// The schedules of runs without a backward, for which all orders are equivalent. The second one is
// for offloaded weights, which it loads once for all microbatches.
inline constexpr char kForwardSchedule[] = "gpipe", kOffloadedForwardSchedule[] = "bfs";

// The orders that the search for a partition distinguishes.
enum class ScheduleOrder {
  kOther,
  kForwardsFirst,  // a stage holds all microbatches
  kAlternating,    // a stage holds one microbatch, and one more for each stage after it
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
  int weight_versions = 1;       // number that a stage keeps; 0: one for each microbatch in flight
  ScheduleOrder order = ScheduleOrder::kOther;
  bool starts_search = false;  // the search of zb-auto starts from it, among others
};

const std::vector<ScheduleKind>& Schedules();
// Returns null if no schedule has this name.
const ScheduleKind* FindSchedule(const std::string& name);
// Returns kOther if no schedule has this name.
ScheduleOrder OrderOf(const std::string& name);

}  // namespace pipewright
