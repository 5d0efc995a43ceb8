// Orders found by playing the pipeline through at unit costs: for placements no formula covers.
#pragma once
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "plan/schedule.h"

namespace pipewright {

// A chain of stages played through: F, I and W take 1, B takes 2, transfers nothing. Every rank,
// whenever it is free, starts what it is told to.
class Playout {
 public:
  Playout(const Placement& placement, int ranks, int microbatches);

  // Whether a compute's inputs are there at `now`: of F and of B or I also its own F, of W its I.
  bool Ready(const Action& compute, int now) const;

  // choose(rank, now) gives the compute to start, ready by then, or an action of kind kStep for
  // none; it is asked again when something that the rank may wait for has ended.
  Plan Run(const std::function<Action(int rank, int now)>& choose);

 private:
  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * microbatches_ + microbatch;
  }
  int Rank(int stage, int microbatch) const {
    return placement_[stage][microbatch % placement_[stage].size()];
  }

  const Placement& placement_;
  int ranks_, stages_, microbatches_;
  std::vector<int> forward_end_, backward_end_;  // [stage * microbatches + microbatch]
};

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

// Every rank, whenever it is free, takes of what is ready: a backward of its last stage (or first),
// else a forward of its last stage that may hold one more, else a W. Microbatches of a stage come
// in order.
Plan ListSchedule(const Placement& placement, int ranks, int microbatches,
                  const ListPolicy& policy);

// In-flight microbatches that keep every later stage busy: by stage, ceil(replicas from here to the
// end / own replicas), neighbours on the same ranks counted once (PipeDream's NOAM; P - r in a
// plain pipeline).
std::vector<int> PipelineDepths(const Placement& placement);

}  // namespace pipewright
