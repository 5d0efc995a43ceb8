// A partition made better by lowering its largest load.
#pragma once
#include <cstdint>

#include "plan/partition/refine/stage_table.h"

namespace pipewright {

// Lowers the largest load: for lower and lower targets, a tabu search moves units out of the
// slowest stage, or exchanges them for others, so that less is over the target. What a move adds to
// the loads of all stages counts `sum_weight` times as much: there is no other room than theirs.
// On the way stages may be short of memory, so that units can change places in full ones; they may
// be so at the start, too. What it took is taken from `steps`. Returns whether the largest load is
// lower, and then no stage is short of memory. Deterministic.
bool BalanceLoads(const UnitGraph& graph, StageTable& table, double sum_weight, int64_t& steps);

}  // namespace pipewright
