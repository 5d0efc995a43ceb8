// Improves a partition by lowering its largest load.
#pragma once
#include <cstdint>

#include "plan/partition/refine/stage_table.h"

namespace pipewright {

// A `sum_weight` with which the loads of other stages may grow on the way: for stages that exceed
// their memory, and to come to other partitions than with 1.
inline constexpr double kLooseSumWeight = 0.2;

// For ever lower targets, a tabu search moves units out of the slowest stage, or exchanges them for
// others, to lower the sum of what loads exceed the target by. An increase of the sum of the loads
// that a move changes counts too, `sum_weight` times, because it uses up the room in other stages.
// Stages may exceed their memory at the start and on the way, so that units of full stages can
// change places. Subtracts its cost from `steps`. Returns true if the largest load is lower; then
// no stage exceeds its memory. Deterministic.
bool BalanceLoads(const UnitGraph& graph, StageTable& table, double sum_weight, int64_t& steps);

}  // namespace pipewright
