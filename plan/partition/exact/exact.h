// Finds the optimal partition by dynamic programming over the sets that the last stages can hold.
#pragma once
#include <cstdint>

#include "plan/partition/problem/stage_load.h"

namespace pipewright {

struct ExactOptions {
  int64_t max_sets = 4'000'000;  // sets kept in memory; beyond them the search gives up
  int64_t max_bytes = 6ll << 30;
  double max_seconds = kInfinity;
  int64_t max_visits = INT64_MAX;  // pairs of nested sets, that is, stages tried
  // The remaining effort, in ticks of about a nanosecond, which is counted down; the search gives
  // up below 0. Null: no limit.
  int64_t* ticks = nullptr;
  // Only partitions with all loads under this are wanted; usually the objective of a known one.
  double below = kInfinity;
  // The lower bound must also hold for partitions of fewer stages than the problem's.
  bool fewer = false;
  // Stages take these devices in order; without it, and for proofs, they take any. Not owned.
  const DeviceSequence* sequence = nullptr;
  // No stage may hold exactly these nodes (sorted). Used to find the next best cut.
  std::vector<int> forbidden;
  // For the bound of a step of M microbatches: a stage's value is M times its load plus the time
  // that passes before it can begin and after it has ended, which is the least `lead` of its first
  // units (seconds, by unit; empty: none). The lower bound of the result is then the least such
  // value.
  double repeat = 1;
  std::vector<double> lead;
};

// Searches all partitions that keep the units of `graph` whole. `result.proven` says whether the
// search finished; then `feasible` says whether any partition has an objective under `below`,
// `result` is the best, and no other is better than `lower_bound` (infinite: than `below`).
//
// With I the number of ideals (see ideals.h), the search takes time in the number of pairs of
// nested sets whose difference has a work under `below`, at most I^2 / 2, and O(I * device states)
// memory.
PartitionResult ExactPartition(const PartitionProblem& problem, const UnitGraph& graph,
                               const ExactOptions& options);

// Searches for a better partition than `known` and returns the better of the two, proven if the
// search finished without a sequence of devices. Its lower bound may grow.
PartitionResult SearchBetter(const PartitionProblem& problem, const UnitGraph& graph,
                             const PartitionResult& known, const ExactOptions& options);

}  // namespace pipewright
