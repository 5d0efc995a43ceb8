// Partitions judged by the simulated time of a whole step, warm-up and drain included.
#pragma once
#include <string>

#include "plan/partition/solve.h"

namespace pipewright {

struct StepOptions {
  std::string schedule = "1f1b";
  int microbatches = 8;
};

// Makespan of one step: the schedule's plan on the partition's stages, simulated. A value goes one
// way in time / transfers + latency. Throws Error where the schedule does not fit so many stages.
double StepTime(const PartitionProblem& problem, const PartitionResult& result,
                const StepOptions& step);

// The bottleneck's best partition for each number of stages (or the given one), improved by moving
// nodes between neighbouring stages while the step gets shorter. `objective` is the step time; the
// lower bound is the work of all microbatches shared evenly, or one microbatch's longest path.
PartitionResult SolveStep(const PartitionProblem& problem, const SolveOptions& options,
                          const StepOptions& step);

}  // namespace pipewright
