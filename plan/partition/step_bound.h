// Computes lower bounds on the time of a step.
#pragma once
#include "plan/partition/step_objective.h"

namespace pipewright {

// Returns a lower bound for all partitions: the maximum of the work of all microbatches shared
// evenly and, for each node, the longest path to it plus its work on all microbatches (shared by
// the replicas that a stage may have) plus the longest path of gradients back from it. With 1F1B
// also counts the longest round trip, once for each group of microbatches that can be in flight.
double StepBound(const PartitionProblem& problem, const StepOptions& step);

// Returns a lower bound from the stages of all partitions: the least, over partitions, of the
// largest sum over a stage of its compute on all microbatches and the longest path to it and back,
// including the transfer from the stage before. Uses the exact search; returns 0 if that finds too
// many sets, and `known` (the time of a partition) if no partition has less.
double StepBoundOfStages(const PartitionProblem& problem, const StepOptions& step, double known,
                         const SolveOptions& options);

}  // namespace pipewright
