// Finds orders by simulating the pipeline at unit costs, for placements without a formula.
#pragma once
#include <vector>

#include "plan/plan.h"
#include "plan/schedules/schedule.h"

namespace pipewright {

struct ListPolicy {
  bool forwards_first = false;       // a rank starts no backward before its last forward (GPipe)
  bool split = false;                // backward as I and W
  bool backward_from_first = false;  // among ready backwards, prefer the first stage's
  // By stage: the most microbatches that a replica holds between F and their B or I; at least 1.
  // Empty: no limit.
  std::vector<int> in_flight;
  // By stage: the most W that may wait; above that, a W runs before anything else.
  // Empty: no limit.
  std::vector<int> weight_grads_held;
};

// Returns the order in which, at unit costs (F, I and W take 1, B takes 2, transfers no time),
// every free rank starts the first of these that is ready: a backward of its last stage (or first),
// a forward of its last stage that may hold one more microbatch, a W. Microbatches of a stage run
// in order.
Plan ListSchedule(const StagePlacement& placement, int ranks, int microbatches,
                  const ListPolicy& policy);

// Returns, by stage, the number of in-flight microbatches that keeps every later stage busy:
// ceil(replicas from here to the end / own replicas), where neighbors on the same ranks count once
// (PipeDream's NOAM; P - r in a plain pipeline).
std::vector<int> PipelineDepths(const StagePlacement& placement);

}  // namespace pipewright
