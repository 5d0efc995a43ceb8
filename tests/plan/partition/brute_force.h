// Tries every partition of a small problem.
#pragma once
#include <functional>
#include <random>

#include "plan/partition/problem/problem.h"

namespace pipewright {

// Returns the least objective of all partitions that CheckPartition accepts; infinity if there is
// none. `cost` replaces the objective.
double BruteForceOptimum(const PartitionProblem& problem,
                         const std::function<double(const PartitionResult&)>& cost = {});

// Returns a random problem with the features selected by the bits of `features`: 1 memory limits, 2
// a CPU, 4 groups, 8 unequal devices, 16 a cost per transfer, 32 replicas, 64 a fixed number of
// stages, 128 activations in flight, 256 backward nodes.
PartitionProblem RandomProblem(std::mt19937& random, int max_nodes, int features);

}  // namespace pipewright
