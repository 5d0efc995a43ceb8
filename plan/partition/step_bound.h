// Bounds that no step is shorter than.
#pragma once
#include "plan/partition/step_objective.h"

namespace pipewright {

// No partition has a shorter step: the bound is the larger of the work of all microbatches shared
// evenly and, for each node, the longest path to it, its own work on all microbatches (shared by
// the replicas that a stage may have), and the longest path of gradients back from it. With 1F1B it
// also counts the longest path there and back, as often as microbatches follow one another.
double StepBound(const PartitionProblem& problem, const StepOptions& step);

// The least bound that any partition's stages allow: the largest of each one's compute on all
// microbatches and the longest path to it and back, the transfer from the stage before included. By
// the exact search; 0 where that finds too many sets, `known` (the time of a partition) where no
// partition has less.
double StepBoundOfStages(const PartitionProblem& problem, const StepOptions& step, double known,
                         const SolveOptions& options);

}  // namespace pipewright
