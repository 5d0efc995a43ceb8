// Good partitions of large graphs: the best cuts of several topological orders, partitions of
// coarser graphs, then local moves.
#pragma once
#include <optional>

#include "plan/partition/fast/windows.h"
#include "plan/partition/problem/clusters.h"
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

struct FastOptions {
  double below = kInfinity;  // only partitions better than this are of interest
  bool fewer = false;        // as of ExactOptions
  // The effort that is left is counted down, and split among the parts of the search. None: it is
  // FastTicks(graph). Not owned.
  int64_t* ticks = nullptr;
  int64_t pairs = 600'000;       // stages tried in one order; sets how finely large graphs are cut
  int units = 12000;             // that partitions from coarser graphs are made of, in all
  bool wide = false;             // there are known to be too many sets for an exact search
  bool tied = true;              // whether to look for units that no good partition parts
  int rounds = 8;                // of searches near the best cuts
  int64_t nearby_sets = 20'000;  // of one such search
  int64_t exact_words = 20'000'000;  // of the exact search over all units: sets times units
  // Stages take these devices in their order (then nothing is proven but by the lower bound); and a
  // partition to begin with. Not owned; none by default.
  const DeviceSequence* sequence = nullptr;
  const StagedUnits* start = nullptr;
  bool fresh = true;  // whether to look for others than the one to begin with
};

// The effort that a graph is worth, in ticks: each part of the search counts its steps, and a tick
// is about a nanosecond of them.
int64_t FastTicks(const UnitGraph& graph);

// As many sets of units as an exact search may have in a graph of this size.
int64_t ExactSets(const UnitGraph& graph, const FastOptions& options);

// Says whether the graph has no more than those.
bool IsNarrow(const UnitGraph& graph, const FastOptions& options, int64_t& ticks);

// Units that exchange values so dear that no good partition can part them as one, as long as those
// are no larger than a stage, `bound` being what one takes at least. None where more than 500 are
// left.
std::optional<Coarser> TiedUnits(const PartitionProblem& problem, const UnitGraph& graph,
                                 double bound);

// Deterministic: its effort is counted in steps, not seconds. Never worse than the best cuts of
// each order that it tries, nor than equal cuts in the order of the nodes.
// `proven` where it equals the lower bound, or where an exact search of a narrow graph came to its
// end; then `feasible` says whether any partition has an objective under `below`.
PartitionResult FastPartition(const PartitionProblem& problem, const UnitGraph& graph,
                              const FastOptions& options);

}  // namespace pipewright
