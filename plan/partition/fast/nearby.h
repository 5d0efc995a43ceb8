// Exact searches for cuts near those of a partition.
#pragma once
#include "plan/partition/fast/fast.h"

namespace pipewright {

// Units at either end of a stage that searches near the cuts of a partition leave free.
inline constexpr int kLeastFree = 4, kMostFree = 32;

// The best of all partitions whose cuts lie near those of `known`: within each stage only the first
// and the last units in `order` may go to its neighbours, the rest is one unit. `order` has the
// stages one after the other. `free` is the number of such units: doubled as long as the search is
// small and finds nothing better; where it does, that is what to begin with next.
PartitionResult SearchNearby(const PartitionProblem& problem, const UnitGraph& graph,
                             const std::vector<int>& order, const PartitionResult& known,
                             const FastOptions& options, int& free, int64_t& ticks);

}  // namespace pipewright
