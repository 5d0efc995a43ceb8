// Orders found by playing the pipeline through at unit costs: for placements no formula covers.
#pragma once
#include <vector>

#include "plan/plan.h"
#include "plan/schedule.h"

namespace pipewright {

struct ListPolicy {
  bool forwards_first = false;       // a rank starts no backward before its last forward (GPipe)
  bool split = false;                // backward as I and W
  bool backward_from_first = false;  // of several ready backwards, that of the first stage
  // By stage: how many microbatches a replica holds from their F to their B or I at most; at least
  // 1. Empty: no limit.
  std::vector<int> in_flight;
  // By stage: as many W may wait; with one more, one is done before anything else. Empty: no limit.
  std::vector<int> weight_grads_held;
};

// At unit costs (F, I and W take 1, B takes 2, transfers nothing), every rank, whenever it is free,
// takes of what is ready: a backward of its last stage (or first),
// else a forward of its last stage that may hold one more, else a W. Microbatches of a stage come
// in order.
Plan ListSchedule(const Placement& placement, int ranks, int microbatches,
                  const ListPolicy& policy);

// In-flight microbatches that keep every later stage busy: by stage, ceil(replicas from here to the
// end / own replicas), neighbours on the same ranks counted once (PipeDream's NOAM; P - r in a
// plain pipeline).
std::vector<int> PipelineDepths(const Placement& placement);

}  // namespace pipewright
