// Finds the best way to cut a topological order into stages.
#pragma once
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

struct Cut {
  int begin = 0, end = 0;  // positions of the order
  StageOption option;
};

struct SequenceCuts {
  double objective = kInfinity;  // infinite: none under `below`
  std::vector<Cut> stages;
};

PartitionState StagesOfCuts(const std::vector<int>& order, const SequenceCuts& cuts);

// Cuts `order` by dynamic programming over positions. If trying all stages would take more than
// `pairs`, only some positions may be cuts: first the cheapest in each stretch of equal work, then
// all those around the best cuts so far. Subtracts its cost from `steps`.
SequenceCuts CutOrder(const PartitionProblem& problem, const UnitGraph& graph,
                      const Resources& resources, const std::vector<int>& order, double below,
                      int64_t pairs, int64_t& steps);

}  // namespace pipewright
