// Partitions judged by the simulated time of a whole step, warm-up and drain included.
#pragma once
#include <string>

#include "plan/partition/solve.h"

namespace pipewright {

struct StepOptions {
  std::string schedule = "1f1b";
  int microbatches = 8;
};

// Makespan of one step: the schedule's plan on the partition's stages, simulated. Where values skip
// stages the plan is lowered, so that they travel straight to those that use them. What a stage
// sends to another takes time / transfers + latency one way, all of its values together. Throws
// Error where the schedule does not fit so many stages. Of nodes that are in no stage nothing is
// waited for. `is_chain`, if given: whether each stage hands on to the next, no other, and gets a
// gradient back.
double StepTime(const PartitionProblem& problem, const PartitionResult& result,
                const StepOptions& step, bool* is_chain = nullptr);

// The bottleneck's best partition for each number of stages (or the given one), improved by moving
// nodes to any stage that their neighbours allow while the step gets shorter, at most about 20
// million simulated actions; so is the best one for equal devices, one a stage, with 1F1B or GPipe,
// where what is asked is more. `objective` is the step time, the lower bound the larger of the two
// below.
// `explanation` names the stage that computes longest, and the shortest step among the partitions
// looked at that do not have it.
PartitionResult SolveStep(const PartitionProblem& problem, const SolveOptions& options,
                          const StepOptions& step, Explanation* explanation = nullptr);

}  // namespace pipewright
