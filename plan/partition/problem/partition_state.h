// Converts partitions of units between the forms that the searches use.
#pragma once
#include "plan/partition/problem/stage_load.h"

namespace pipewright {

// Units in stages, each with the devices that run it. Without options, there is no partition.
struct PartitionState {
  std::vector<StageOption> options;  // by stage, in the order of the pipeline
  std::vector<int> stage_of;         // by unit
};

PartitionState StagesOfResult(const UnitGraph& graph, const PartitionResult& result);

// Cuts the units, in their order, into stages with equal numbers of nodes, on the first devices by
// number that are not CPUs. No options: there are too few units or devices. Ignores memory.
PartitionState EqualCuts(const PartitionProblem& problem, const UnitGraph& graph, int stages);

// Returns the evaluated partition, with a `lower_bound` of 0.
PartitionResult ResultOfStages(const PartitionProblem& problem, const UnitGraph& graph,
                               const PartitionState& units);

// Sorts a topological order by stage and keeps the order within stages. The result is topological,
// too.
std::vector<int> OrderByStage(std::vector<int> order, const PartitionState& units);

}  // namespace pipewright
