// A partition by the wanted effort, with a bound on how far from the best it can be.
#pragma once
#include <string>

#include "plan/partition/exact/exact.h"
#include "plan/partition/fast/fast.h"

namespace pipewright {

struct SolveOptions {
  bool exact = true;
  double max_seconds = kInfinity;  // of the exact search
  int64_t max_sets = 4'000'000;
  // If the result is not proven, the search for a better one goes on until this many seconds after
  // the start. Problems with pair_links ignore it.
  double improve_seconds = 0;
  double effort = 1;  // of the search that is not exact, as a share of FastTicks
  // A partition to begin with: the search that is not exact then only improves it. Not owned.
  const PartitionResult* start = nullptr;
};

// Exact: the best partition, `proven`; where the graph has too many down-sets for that, the best
// found, its lower bound, and `proven` false. Fast: what FastPartition finds, or the best where a
// small exact search settles it.
PartitionResult SolvePartition(const PartitionProblem& problem, const SolveOptions& options);

// Names what binds the objective, and the best partition without the stage that does.
struct Explanation {
  int stage = -1;                // the slowest; -1 where the partition is infeasible
  std::string binds;             // "compute", "transfer" or "memory"
  double next_best = kInfinity;  // infinite: none is known
  bool next_best_proven = false;
};
Explanation ExplainPartition(const PartitionProblem& problem, const PartitionResult& result,
                             const SolveOptions& options);

}  // namespace pipewright
