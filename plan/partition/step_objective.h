// Judges partitions by the simulated time of a whole step, including warm-up and cool-down.
#pragma once
#include <string>

#include "plan/partition/solve.h"
#include "plan/schedules/table.h"

namespace pipewright {

struct StepOptions {
  std::string schedule = kDefaultSchedule;
  int microbatches = 8;
};

// Returns the makespan of one step: the schedule's plan on the partition's stages, simulated. If
// values skip stages, the plan is lowered, so that they go directly to the stages that use them.
// All values from one stage to another take time / transfers + latency one way. Nodes that are in
// no stage are ignored. Sets `is_chain`, if given, to true if each stage sends only to the next and
// gets a gradient back. Throws Error if the schedule is not defined for this number of stages.
double StepTime(const PartitionProblem& problem, const PartitionResult& result,
                const StepOptions& step, bool* is_chain = nullptr);

// Finds a partition with a short step. For each number of stages (or the given one), takes the
// partition with the smallest bottleneck and moves nodes to any stage that their neighbors allow
// while the step gets shorter, with at most about 20 million simulated actions. Unless
// IsSearchable, does the same from the best partition for equal devices, one per stage, with 1F1B
// or GPipe. `objective` is the step time, the lower bound the larger of those in step_bound.h.
// `explanation` gets the stage that computes longest, and the shortest step among the other
// partitions that were tried and do not have that stage.
PartitionResult SolveStep(const PartitionProblem& problem, const SolveOptions& options,
                          const StepOptions& step, Explanation* explanation = nullptr);

}  // namespace pipewright
