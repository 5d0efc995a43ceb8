// Partitions a graph by way of coarser and coarser versions of it.
#pragma once
#include "plan/partition/refine/refine.h"

namespace pipewright {

struct MultilevelOptions {
  int64_t* steps = nullptr;            // the remaining budget; counted down
  int64_t pairs = 500'000;             // stages tried in one order of a level
  int rating = 0;                      // see ClusterOptions
  unsigned seed = 0;                   // see ClusterOptions
  double size = 1;                     // work of a stage, as a multiple of a device's even share
  const PartitionState* start = nullptr;     // partition to begin with
  const DeviceSequence* sequence = nullptr;  // as in ExactOptions
  const std::vector<int>* apart =
      nullptr;  // see ClusterOptions; no finer than the stages of `start`
};

// Coarsens the graph until a few units per stage are left, refines the best cuts of several orders
// of that, and refines again as the graph is uncoarsened. With `start`, begins with that partition,
// whose stages are not merged while coarsening. No options: none was found. Deterministic.
PartitionState MultilevelPartition(const PartitionProblem& problem, const UnitGraph& graph,
                                   const Resources& resources, const MultilevelOptions& options);

}  // namespace pipewright
