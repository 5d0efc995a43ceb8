// Chooses the stages that recompute their forward if zb-auto may.
#pragma once
#include <vector>

#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// Returns a flag for each stage, true if its costs allow recomputation; empty if none do.
std::vector<char> RecomputeOffered(const Costs& costs, int stages);

// Returns at most `count` sets of stages to recompute that are worth a search, and for which one
// microbatch at a time fits; an empty set recomputes none. Tries all sets if four stages or fewer
// may recompute. Otherwise tries none, all and the first stages of every rank, and adds and removes
// single stages, judged by a few quick orders. Deterministic; times about `effort` actions.
std::vector<std::vector<char>> RecomputeChoices(const Costs& costs, int ranks,
                                                const StagePlacement& placement, int microbatches,
                                                double memory, long effort, size_t count);

}  // namespace pipewright
