// Coarser and coarser versions of a graph of units.
#pragma once
#include "plan/partition/problem/units.h"

namespace pipewright {

struct Coarser {
  UnitGraph graph;
  std::vector<int> group_of;  // of each unit of the finer graph: its unit here
};

struct ClusterOptions {
  double most_work = kInfinity;   // of one cluster, in device time
  double most_bytes = kInfinity;  // static, and stash once
  // By unit: those with different ones stay apart.
  const std::vector<int>* apart = nullptr;
  // 0: traffic for the work that both do; 1: traffic; 2: its share of all of a unit's.
  int rating = 0;
  // Other than 0: ratings are halved at most, at random, so that each seed joins other units.
  unsigned seed = 0;
};

// Units between which much travels for the work that they do become one, so that about half as many
// are left; the result is acyclic. Pairs whose longest ways from the sources (or to the sinks)
// differ by at most one, and units with one predecessor or successor, as in Herrmann et al.,
// "Multilevel algorithms for acyclic partitioning of directed acyclic graphs", 2019. Fewer than a
// tenth less units: there is no more to do. Nets of the same units become one. Deterministic.
Coarser CoarsenByTraffic(const UnitGraph& graph, double transfer_latency,
                         const ClusterOptions& options);

// The units with the same leader, which is one of them, as one; no cycle may run through groups.
// Nets of the same groups become one.
Coarser GroupUnits(const UnitGraph& graph, const std::vector<int>& leader);

}  // namespace pipewright
