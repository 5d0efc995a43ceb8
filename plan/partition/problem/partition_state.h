// Partitions of units, in the forms that the searches hand on.
#pragma once
#include "plan/partition/problem/stage_load.h"

namespace pipewright {

// Units in stages, each with the devices that run it. No options: there is no partition.
struct StagedUnits {
  std::vector<StageOption> options;  // of each stage, in the order of the pipeline
  std::vector<int> stage_of;         // of each unit
};

StagedUnits StagesOfResult(const UnitGraph& graph, const PartitionResult& result);

// The units in their order, cut into stages of equally many nodes, on the first devices that are no
// CPUs, by number. No options: there are too few units or devices. Memory is not looked at.
StagedUnits EqualCuts(const PartitionProblem& problem, const UnitGraph& graph, int stages);

// Evaluated; `lower_bound` is left at 0.
PartitionResult ResultOfStages(const PartitionProblem& problem, const UnitGraph& graph,
                               const StagedUnits& units);

// The stages in turn, each in the order that it has in `order`: again a topological one.
std::vector<int> OrderByStage(std::vector<int> order, const StagedUnits& units);

}  // namespace pipewright
