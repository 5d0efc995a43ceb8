// The longest paths of a microbatch through a graph, whatever the stages.
#pragma once
#include "plan/partition/problem/units.h"
#include "plan/partition/step_objective.h"

namespace pipewright {

// The times of each unit on the fastest devices: what must pass before its first forward and after
// its last backward, what it does itself for one microbatch, and until its gradient leaves; and the
// first two with what comes from other stages, where all before the unit is on those.
struct LongestPaths {
  // An input comes from a unit before, in another stage: it travels for `time`, is there at
  // `there`, and `home` passes after its gradient is sent, if there is one.
  struct Entry {
    int before;
    double time, there, home;
    bool gradient;
  };
  std::vector<double> to, back, own, until_gradient, to_alone, back_alone;
  std::vector<double> round;                // the longest path from a unit to this one and back
  std::vector<std::vector<Entry>> entries;  // of each unit

  // `graph`: of the problem, or of one without its transfers. `speed`: of the fastest device.
  LongestPaths(const PartitionProblem& problem, const UnitGraph& graph, const StepOptions& step,
               double speed);
};

// The speed of the fastest device; 0 where a CPU may take over any part.
double FastestDevice(const PartitionProblem& problem);

// Says whether the schedule's backward is in halves, of which only the first holds up other stages.
bool SplitsBackward(const std::string& schedule);

}  // namespace pipewright
