// Finds good partitions of large graphs: the best cuts of several topological orders, partitions of
// coarser graphs, then local moves.
#pragma once

#include "plan/partition/problem/partition_state.h"

namespace pipewright {

struct FastOptions {
  double below = kInfinity;  // only partitions better than this are of interest
  bool fewer = false;        // as in ExactOptions
  // The remaining effort, which is counted down and shared among the parts of the search. Null:
  // FastTicks(graph). Not owned.
  int64_t* ticks = nullptr;
  int64_t pairs = 600'000;  // stages tried in one order; sets how finely large graphs are cut
  bool wide = false;        // the graph is known to have too many sets for an exact search
  int64_t exact_words = 20'000'000;  // limit of the exact search over all units: sets times units
  // `sequence`: stages take these devices in order (then only the lower bound proves anything).
  // `start`: a partition to begin with. Not owned; null by default.
  const DeviceSequence* sequence = nullptr;
  const PartitionState* start = nullptr;
  // True: searches for partitions other than `start`. False: cuts the stages of `start` again and,
  // unless `seed` is 0, adds partitions from coarser graphs, which differ by seed.
  bool fresh = true;
  int seed = 0;
};

// Returns the effort for a graph in ticks. Each part of the search counts its steps; a tick is
// about a nanosecond.
int64_t FastTicks(const UnitGraph& graph);

// Returns the limit on sets of units for an exact search in a graph of this size.
int64_t ExactSets(const UnitGraph& graph, const FastOptions& options);

// Returns true if the graph has no more than ExactSets.
bool IsNarrow(const UnitGraph& graph, const FastOptions& options, int64_t& ticks);

// Finds a good partition. Deterministic: effort is counted in steps, not seconds. Never worse than
// the best cuts of each order that it tries, nor than equal cuts in the order of the nodes.
// `proven` if it equals the lower bound, or if an exact search of a narrow graph finished; then
// `feasible` says whether any partition has an objective under `below`.
PartitionResult FastPartition(const PartitionProblem& problem, const UnitGraph& graph,
                              const FastOptions& options);

}  // namespace pipewright
