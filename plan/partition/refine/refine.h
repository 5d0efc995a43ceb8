// Improves a partition by moving units between its stages.
#pragma once
#include <cstdint>

#include "plan/partition/refine/stage_table.h"

namespace pipewright {

struct RefineOptions {
  int power = 2;   // loads count with this power: 2 saves transfers, more evens out the loads
  int passes = 4;  // at most; stops after one that has not helped
  int64_t* steps;  // the remaining budget; counted down
};

// Makes passes in which each unit moves at most once, always the one whose move lowers the sum of
// the loads' powers most or raises it least, and keeps the best state of each pass (Fiduccia and
// Mattheyses, DAC 1982). Returns true if the partition improved. Deterministic.
bool Refine(const UnitGraph& graph, StageTable& table, const RefineOptions& options);

}  // namespace pipewright
