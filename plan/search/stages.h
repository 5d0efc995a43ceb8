// Merges the entries of a finer profile into stages, and chooses their number.
#pragma once
#include "plan/search/zb_auto.h"

namespace pipewright {

// Returns costs of `stages` stages, each the sum of adjacent entries of a finer profile, cut so
// that the largest F + I + W is small. The output of a stage is that of its last part. Throws Error
// if the profile has fewer entries.
Costs MergeStages(const Costs& profile, int stages);

// Tries several numbers of stages, multiples of the ranks up to the entries of `profile`, and
// returns the one with the least span. `costs` receives the costs of the stages of the plan.
ZbAutoResult ZbAutoStages(const Costs& profile, int ranks, int microbatches,
                          const ZbAutoOptions& options, Costs& costs);

}  // namespace pipewright
