#include "plan/schedules/table.h"

#include "plan/schedules/generators.h"

namespace pipewright {

const std::vector<ScheduleKind>& Schedules() {
  using Shape = ScheduleShape;
  static const std::vector<ScheduleKind> schedules = {
      {.name = "gpipe", .make = Gpipe, .order = ScheduleOrder::kForwardsFirst},
      {.name = "1f1b", .make = OneForwardOneBackward, .order = ScheduleOrder::kAlternating,
       .starts_search = true},
      {.name = "interleaved", .make = Interleaved, .stages_per_rank = 2, .starts_search = true},
      {.name = "bfs", .make = BreadthFirst, .stages_per_rank = 2},
      {.name = "zb-h1", .make = ZeroBubbleH1, .splits_backward = true, .starts_search = true},
      {.name = "zb-h2", .make = ZeroBubbleH2, .splits_backward = true, .starts_search = true},
      {.name = "zb1p", .make = InterleavedZeroBubble, .stages_per_rank = 2,
       .splits_backward = true, .starts_search = true},
      {.name = "zbv", .make = ZeroBubbleV, .shape = Shape::kV, .placement = "v",
       .stages_per_rank = 2, .splits_backward = true, .starts_search = true},
      {.name = "v-half", .make = VHalf, .shape = Shape::kV, .placement = "v", .stages_per_rank = 2,
       .splits_backward = true, .starts_search = true},
      {.name = "v-min", .make = VMin, .shape = Shape::kV, .placement = "v", .stages_per_rank = 2,
       .splits_backward = true, .starts_search = true},
      {.name = "dualpipev", .make = DualPipeV, .shape = Shape::kDualV, .placement = "v",
       .stages_per_rank = 2, .splits_backward = true},
      {.name = "dualpipe", .make = DualPipe, .shape = Shape::kDualTwoWays, .placement = "both",
       .splits_backward = true},
      {.name = "chimera", .make = Chimera, .shape = Shape::kTwoWays, .placement = "both"},
      {.name = "hanayo", .make = Hanayo, .shape = Shape::kWaves, .placement = "v",
       .stages_per_rank = 2},
      {.name = "looped-bfs", .make = LoopedBreadthFirst, .stages_per_rank = 2},
      {.name = "zb-auto", .splits_backward = true, .searched = true},
      {.name = "pipedream", .asynchronous = true, .weight_versions = 0},
      {.name = "pipedream-2bw", .asynchronous = true, .weight_versions = 2},
  };
  return schedules;
}

const ScheduleKind* FindSchedule(const std::string& name) {
  for (const ScheduleKind& kind : Schedules())
    if (name == kind.name) return &kind;
  return nullptr;
}

ScheduleOrder OrderOf(const std::string& name) {
  const ScheduleKind* kind = FindSchedule(name);
  return kind ? kind->order : ScheduleOrder::kOther;
}

}  // namespace pipewright
