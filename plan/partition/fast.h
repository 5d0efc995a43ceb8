// Good partitions of large graphs: the best cuts of several topological orders, partitions of
// coarser graphs, then local moves.
#pragma once
#include "plan/partition/staged_units.h"
#include "plan/partition/windows.h"

namespace pipewright {

struct FastOptions {
  double below = kInfinity;  // only partitions better than this are of interest
  bool fewer = false;        // as of ExactOptions
  int64_t pairs = 600'000;   // stages tried in one order; sets how finely large graphs are cut
  int64_t steps = 45'000'000, steps_of_unit = 3'000;  // in all, and of each unit and place of a net
  int units = 12000;                  // that partitions from coarser graphs are made of, in all
  int64_t balance_steps = 1'500'000;  // of evening out the best one's loads, each of eight times
  bool tied = true;                   // whether to look for units that no good partition parts
  int64_t fill_steps = 25'000'000;    // of filling one stage after the other
  int rounds = 8;                     // of searches near the best cuts
  int64_t nearby_sets = 20'000, nearby_visits = 2'000'000;  // of one such search
  // Of the exact search over all units: visits, and sets times units.
  int64_t exact_visits = 2'000'000, exact_words = 20'000'000;
  WindowOptions windows;  // of what follows those
  // Stages take these devices in their order (then nothing is proven but by the lower bound); and a
  // partition to begin with. Not owned; none by default.
  const DeviceSequence* sequence = nullptr;
  const StagedUnits* start = nullptr;
  bool fresh = true;  // whether to look for others than the one to begin with
};

// Deterministic: its effort is counted in steps, not seconds. Never worse than the best cuts of
// each order that it tries, nor than equal cuts in the order of the nodes.
// `proven` where it equals the lower bound, or where an exact search of a narrow graph came to its
// end; then `feasible` says whether any partition has an objective under `below`.
PartitionResult FastPartition(const PartitionProblem& problem, const UnitGraph& graph,
                              const FastOptions& options);

// No partition is better than this: the work shared evenly with the least transfers that so many
// stages need, the slowest unit on its best device. Infinite where total memory does not suffice.
// `fewer`: nor is one of fewer stages than the problem's.
double PartitionLowerBound(const PartitionProblem& problem, const UnitGraph& graph,
                           bool fewer = false);

// Topological orders of the units that tend to have cheap cuts. The first is 0, 1, 2, ...
std::vector<std::vector<int>> CandidateOrders(const UnitGraph& graph);

}  // namespace pipewright
