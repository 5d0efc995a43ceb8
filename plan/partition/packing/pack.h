// Stages as bins: units are put into them whatever their order, as long as they close no cycle.
#pragma once
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

inline constexpr int kPackTicks = 4;  // of a step of PackedStages

// Places all units, on one device a stage, with no load over lower and lower multiples of `bound`,
// down to 1 % over it, as long as they are reached. A unit that fits nowhere takes the place of
// those that have been the easiest to place, with what lies between it and the stage's others
// (after Nagata, Bräysy, "A powerful route minimization heuristic for the vehicle routing problem
// with time windows", 2009). Memory counts as of the place that each stage has in their order.
// `start`: stages to begin with, perhaps not all; units that are in none of them have stage -1. No
// options: all units are in none.
// Returns the stages in their order, perhaps fewer than the problem's; no options where nothing
// under `below` was found with `steps`, which are counted down. Deterministic.
StagedUnits PackedStages(const PartitionProblem& problem, const UnitGraph& graph, double bound,
                         double below, const StagedUnits& start, int64_t& steps);

}  // namespace pipewright
