// Stages filled one after the other, as stations of an assembly line are.
#pragma once
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

inline constexpr int kFillTicks = 6;  // of a step of FilledStages

// A device for each stage that there can be, the fastest first. CPUs are left out.
std::vector<StageOption> FastestDevices(const PartitionProblem& problem, int units);

// Stages of units on those devices, with no load over `most`, filled from the first one on or from
// the last: of the fullest filling that was found, the stage of each unit is -1 where it could not
// be placed. After each stage as many fillings are kept as `kept`: those that have done most of
// what their devices could, and whose rest needs the least memory; many of each next stage are
// tried, on the slowest device that takes it (after Hoffmann, "Assembly line balancing with a
// precedence matrix", 1963, and Sewell, Jacobson, "A branch, bound, and remember algorithm for the
// simple assembly line balancing problem", 2012). What it took is taken from `steps`.
// Deterministic.
StagedUnits FilledStages(const PartitionProblem& problem, const UnitGraph& graph, double most,
                         size_t kept, int64_t& steps);

}  // namespace pipewright
