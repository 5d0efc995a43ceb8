// Good partitions of large graphs: the best cuts of several topological orders, partitions of
// coarser graphs, then local moves.
#pragma once

#include "plan/partition/problem/partition_state.h"

namespace pipewright {

struct FastOptions {
  double below = kInfinity;  // only partitions better than this are of interest
  bool fewer = false;        // as of ExactOptions
  // The effort that is left is counted down, and split among the parts of the search. None: it is
  // FastTicks(graph). Not owned.
  int64_t* ticks = nullptr;
  int64_t pairs = 600'000;  // stages tried in one order; sets how finely large graphs are cut
  bool wide = false;        // there are known to be too many sets for an exact search
  int64_t exact_words = 20'000'000;  // of the exact search over all units: sets times units
  // Stages take these devices in their order (then nothing is proven but by the lower bound); and a
  // partition to begin with. Not owned; none by default.
  const DeviceSequence* sequence = nullptr;
  const StagedUnits* start = nullptr;
  // If true, the search looks for other partitions than `start`. If false, it cuts the stages of
  // that one anew; where `seed` is not 0, partitions from coarser graphs follow, which each seed
  // joins in other ways.
  bool fresh = true;
  int seed = 0;
};

// The effort that a graph is worth, in ticks: each part of the search counts its steps, and a tick
// is about a nanosecond of them.
int64_t FastTicks(const UnitGraph& graph);

// As many sets of units as an exact search may have in a graph of this size.
int64_t ExactSets(const UnitGraph& graph, const FastOptions& options);

// Says whether the graph has no more than those.
bool IsNarrow(const UnitGraph& graph, const FastOptions& options, int64_t& ticks);

// Deterministic: its effort is counted in steps, not seconds. Never worse than the best cuts of
// each order that it tries, nor than equal cuts in the order of the nodes.
// `proven` where it equals the lower bound, or where an exact search of a narrow graph came to its
// end; then `feasible` says whether any partition has an objective under `below`.
PartitionResult FastPartition(const PartitionProblem& problem, const UnitGraph& graph,
                              const FastOptions& options);

}  // namespace pipewright
