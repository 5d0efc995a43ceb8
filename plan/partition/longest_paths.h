// Finds the longest paths of a microbatch through a graph, which hold for any stages.
#pragma once
#include "plan/partition/problem/units.h"
#include "plan/partition/step_objective.h"

namespace pipewright {

// The times of each unit on the fastest devices: `to` must pass before its first forward and `back`
// after its last backward; `own` is its work for one microbatch, `until_gradient` the part of it
// until its gradient is sent. `to_alone` and `back_alone` include the transfers from other stages,
// if all predecessors are in those.
struct LongestPaths {
  // An input from unit `before` in another stage. Its transfer takes `time`, it arrives
  // at `there`, and `home` passes after its gradient is sent, if there is one.
  struct Entry {
    int before;
    double time, there, home;
    bool gradient;
  };
  std::vector<double> to, back, own, until_gradient, to_alone, back_alone;
  std::vector<double> round;                // the longest path from a unit to this one and back
  std::vector<std::vector<Entry>> entries;  // by unit

  // `graph`: that of the problem, or of the problem without transfers. `speed`: the fastest
  // device's.
  LongestPaths(const PartitionProblem& problem, const UnitGraph& graph, const StepOptions& step,
               double speed);
};

// Returns the speed of the fastest device; 0 if there are CPUs, which may take over any part.
double FastestDevice(const PartitionProblem& problem);

// Returns true if the schedule splits the backward, so that other stages wait only for I.
bool SplitsBackward(const std::string& schedule);

}  // namespace pipewright
