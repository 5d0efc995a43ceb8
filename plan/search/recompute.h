// Chooses the stages that run their forward again before their backward, where zb-auto may.
#pragma once
#include <vector>

#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// By stage: whether the costs offer recompute. Empty where they do for none.
std::vector<char> RecomputeOffered(const Costs& costs, int stages);

// Sets of stages to recompute worth a search, by stage, an empty one for none; at most `count` and
// those for which one microbatch at a time fits. All there are where four stages or fewer may;
// otherwise none, all, and what adding and taking away single stages makes of the best of those
// and of the first stages of every rank, judged by a few quick orders. Deterministic; times about
// `effort` actions.
std::vector<std::vector<char>> RecomputeChoices(const Costs& costs, int ranks,
                                                const StagePlacement& placement, int microbatches,
                                                double memory, long effort, size_t count);

}  // namespace pipewright
