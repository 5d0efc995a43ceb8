// A partition made better by moving units between its stages.
#pragma once
#include <cstdint>

#include "plan/partition/refine/stage_table.h"

namespace pipewright {

struct RefineOptions {
  int power = 2;   // loads count with this power: 2 saves transfers, more evens out the loads
  int passes = 4;  // at most; the next one follows only where one has helped
  int64_t* steps;  // that may still be taken; counted down
};

// Passes in which each unit moves at most once, always the one whose move lowers the sum of the
// loads' powers most or raises it least; the best moment of a pass is kept (Fiduccia, Mattheyses,
// DAC 1982). Returns whether anything is better. Deterministic.
bool Refine(const UnitGraph& graph, StageTable& table, const RefineOptions& options);

}  // namespace pipewright
