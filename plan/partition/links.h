// Solves problems with links whose bandwidth depends on both ends.
#pragma once
#include "plan/partition/solve.h"

namespace pipewright {

// Solves a problem with pair_links. First solves it as if every device had its best link, whose
// lower bound holds here too. Improves that partition, those for slower equal links and, if that is
// quick, those for other numbers of stages, by exchanging devices between stages and moving nodes
// out of the slowest stage. Last, searches small problems exhaustively. The best result is `proven`
// if that search finished or it equals the bound. Deterministic.
PartitionResult SolvePairLinks(const PartitionProblem& problem, const SolveOptions& options);

// Returns the best known partition in which no stage holds exactly the nodes `forbidden` (sorted).
// Finds it the same way, from exact searches limited by `exact`.
PartitionResult NextBestPairLinks(const PartitionProblem& problem, const UnitGraph& graph,
                                  const std::vector<int>& forbidden, ExactOptions exact);

}  // namespace pipewright
