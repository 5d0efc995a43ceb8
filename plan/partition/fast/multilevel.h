// Partitions of a graph from those of coarser and coarser versions of it.
#pragma once
#include "plan/partition/refine/refine.h"

namespace pipewright {

struct MultilevelOptions {
  int64_t* steps = nullptr;            // that may still be taken; counted down
  int64_t pairs = 500'000;             // stages tried in one order of a level
  int rating = 0;                      // of ClusterOptions
  unsigned seed = 0;                   // of ClusterOptions
  double size = 1;                     // work of a stage, as a multiple of a device's even share
  const StagedUnits* start = nullptr;  // where to begin
  const DeviceSequence* sequence = nullptr;  // as of ExactOptions
  const std::vector<int>* apart =
      nullptr;  // of ClusterOptions; no finer than the stages of `start`
};

// The graph is made coarser until a few units a stage are left; the best cuts of several orders of
// that are refined, and refined again as the units are taken apart. With `start`, whose stages are
// then not mixed while coarsening, that partition is the first one. No options: none was found.
// Deterministic.
StagedUnits MultilevelPartition(const PartitionProblem& problem, const UnitGraph& graph,
                                const Resources& resources, const MultilevelOptions& options);

}  // namespace pipewright
