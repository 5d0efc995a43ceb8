// Finds a partition with the given effort, and a bound on its distance from the optimum.
#pragma once
#include <string>

#include "plan/partition/exact/exact.h"
#include "plan/partition/fast/fast.h"

namespace pipewright {

struct SolveOptions {
  bool exact = true;
  double max_seconds = kInfinity;  // the limit for the exact search
  int64_t max_sets = 4'000'000;
  // If the result is not proven, the search for a better one continues until this many seconds
  // after the start. Problems with pair_links ignore it.
  double improve_seconds = 0;
  double effort = 1;  // of the heuristic search, as a share of FastTicks
  // A partition to begin with, which the heuristic search only improves. Not owned.
  const PartitionResult* start = nullptr;
};

// Finds a partition. Exact: the optimum, `proven`; if the graph has too many ideals for that,
// the best found, its lower bound, and `proven` false. Fast: the result of FastPartition, or the
// optimum if a small exact search proves it.
PartitionResult SolvePartition(const PartitionProblem& problem, const SolveOptions& options);

// The bottleneck of a partition, and the best partition without that stage.
struct Explanation {
  int stage = -1;                // the slowest; -1 if the partition is infeasible
  std::string binds;             // "compute", "transfer" or "memory"
  double next_best = kInfinity;  // objective; infinite: none is known
  bool next_best_proven = false;
};
Explanation ExplainPartition(const PartitionProblem& problem, const PartitionResult& result,
                             const SolveOptions& options);

}  // namespace pipewright
