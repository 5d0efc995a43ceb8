// Stages put together from a finer profile, and how many of them.
#pragma once
#include "plan/search/zb_auto.h"

namespace pipewright {

// Costs of `stages` stages, each the sum of neighbours in a finer profile: the cuts keep the
// largest F + I + W small. The output of a stage is that of its last part. Throws Error when the
// profile has fewer entries.
Costs MergeStages(const Costs& profile, int stages);

// Several numbers of stages tried, multiples of the ranks up to the entries of `profile`: the one
// with the least span. `costs` receives the costs of the stages of the plan.
ZbAutoResult ZbAutoStages(const Costs& profile, int ranks, int microbatches,
                          const ZbAutoOptions& options, Costs& costs);

}  // namespace pipewright
