// The best partition of all, by dynamic programming over the sets that the last stages can hold.
#pragma once
#include <cstdint>

#include "plan/partition/problem/stage_load.h"

namespace pipewright {

struct ExactOptions {
  int64_t max_sets = 4'000'000;  // sets kept in memory; beyond them the search gives up
  int64_t max_bytes = 6ll << 30;
  double max_seconds = kInfinity;
  int64_t max_visits = INT64_MAX;  // pairs of nested sets looked at
  // The effort that is left, in ticks of about a nanosecond, is counted down; below 0 the search
  // gives up. None: there is no limit.
  int64_t* ticks = nullptr;
  // Partitions with a load of this or more are of no interest; usually that of a known one.
  double below = kInfinity;
  // The lower bound is to hold for partitions of fewer stages than the problem's as well.
  bool fewer = false;
  // Stages take these devices in their order; else, and for proofs, they take any. Not owned.
  const DeviceSequence* sequence = nullptr;
  // No stage may hold exactly these nodes (sorted). For "what would the next best cut cost?".
  std::vector<int> forbidden;
  // For the bound of a step of M microbatches: a load counts M times, and on top of it comes what
  // passes before the stage can begin and after it has ended, `lead` of the one of its units that
  // has least of it (seconds, by unit; empty: nothing). The lower bound of the result is then the
  // least such value.
  double repeat = 1;
  std::vector<double> lead;
};

// `result.proven` says (for partitions that keep the units of `graph` whole) whether the search
// finished; then `feasible` says whether any partition has an objective under `below`, `result` is
// the best, and no other is better than `lower_bound` (infinite: than `below`).
//
// With I the number of ideals (see ideals.h), the search takes O(pairs of nested sets with
// a work under `below`) time, at most I^2 / 2, and O(I * states of the devices) memory.
PartitionResult ExactPartition(const PartitionProblem& problem, const UnitGraph& graph,
                               const ExactOptions& options);

// The exact search for something better than `known`, which is replaced, or proven where the search
// finished, unless it had a sequence of devices. Its lower bound may grow.
PartitionResult SearchBetter(const PartitionProblem& problem, const UnitGraph& graph,
                             const PartitionResult& known, const ExactOptions& options);

}  // namespace pipewright
