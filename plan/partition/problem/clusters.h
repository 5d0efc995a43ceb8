// Coarsens a graph of units by merging units into clusters.
#pragma once
#include "plan/partition/problem/units.h"

namespace pipewright {

struct Coarser {
  UnitGraph graph;
  std::vector<int> group_of;  // by unit of the finer graph: its unit here
};

struct ClusterOptions {
  double most_work = kInfinity;  // the limit of one cluster, in device time
  double most_bytes =
      kInfinity;  // the limit of one cluster: static bytes, plus the stash of one microbatch
  // By unit: units with different numbers stay in different clusters.
  const std::vector<int>* apart = nullptr;
  // Rates pairs by 0: traffic per work of both; 1: traffic; 2: share of both units' total traffic.
  int rating = 0;
  // Unless 0, ratings are scaled at random by 0.5 to 1, so that each seed merges other units.
  unsigned seed = 0;
};

// Merges units with much traffic between them, until at most 60 % are left; the result is
// acyclic. Merges pairs whose longest paths from the sources (or to the sinks) differ in length by
// at most one, and units with one predecessor or successor, as in Herrmann et al., "Multilevel
// algorithms for acyclic partitioning of directed acyclic graphs", 2019. If hardly fewer units are
// left, the graph cannot be coarsened further. Merges nets of the same units. Deterministic.
Coarser CoarsenByTraffic(const UnitGraph& graph, double transfer_latency,
                         const ClusterOptions& options);

// Merges the units with the same leader, which is one of them. The graph of groups must be acyclic.
// Merges nets of the same groups.
Coarser GroupUnits(const UnitGraph& graph, const std::vector<int>& leader);

}  // namespace pipewright
