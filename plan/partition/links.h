// Links whose bandwidth depends on both ends.
#pragma once
#include "plan/partition/solve.h"

namespace pipewright {

// For problems with pair_links. First the best partition where every device has its best link: no
// partition is better than that one's lower bound. Then that partition, and those of slower equal
// links and, where that is quick, of other numbers of stages, with the devices exchanged between
// stages and nodes moved out of the slowest stage while that helps; the best of them. Last, small problems are searched
// whole. `proven` where that came to its end or the result equals the bound. Deterministic.
PartitionResult SolvePairLinks(const PartitionProblem& problem, const SolveOptions& options);

// The best known partition none of whose stages holds exactly the nodes `forbidden` (sorted), found
// in the same way from exact searches as `exact` limits them.
PartitionResult NextBestPairLinks(const PartitionProblem& problem, const UnitGraph& graph,
                                  const std::vector<int>& forbidden, ExactOptions exact);

}  // namespace pipewright
