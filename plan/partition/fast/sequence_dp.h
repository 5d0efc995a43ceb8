// The best way to cut one topological order into stages.
#pragma once
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

struct Cut {
  int begin = 0, end = 0;  // positions of the order
  StageOption option;
};

struct OrderCuts {
  double objective = kInfinity;  // infinite: none under `below`
  std::vector<Cut> stages;
};

StagedUnits StagesOfCuts(const std::vector<int>& order, const OrderCuts& cuts);

// Dynamic programming over positions. Where `order` is too long for `pairs` stages to be tried,
// only some positions are allowed to be cuts: first the cheapest of each stretch of equal work,
// then all those around the best cuts found so far. What it took is taken from `steps`.
OrderCuts CutOrder(const PartitionProblem& problem, const UnitGraph& graph,
                   const Resources& resources, const std::vector<int>& order, double below,
                   int64_t pairs, int64_t& steps);

}  // namespace pipewright
