// A partition problem as a hypergraph: units, which cannot be divided, and nets of units that share
// values.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/partition/problem/problem.h"

namespace pipewright {

struct Unit {
  std::vector<int> nodes;
  double device_time = 0, host_time = 0;
  bool device_ok = true;
  double static_bytes = 0, stash_bytes = 0, parameter_bytes = 0;
};

// A set of units that share values. Every stage that holds some of them but not all pays its costs.
struct Net {
  std::vector<int> units;  // ascending, at least two
  double time = 0, transfers = 0, bytes = 0;
  double stash_bytes = 0;  // for every stage that holds some or all of them
};

struct UnitGraph {
  std::vector<Unit> units;  // numbered in a topological order
  std::vector<Net> nets;    // no two have the same units
  std::vector<std::vector<int>> nets_of;
  std::vector<std::vector<int>> next, previous;  // the order that stages must keep
};

// Disjoint sets of numbers (union-find).
struct UnitSets {
  std::vector<int> parent;
  explicit UnitSets(int size) : parent(size) { std::iota(parent.begin(), parent.end(), 0); }
  int Find(int i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  }
  // Unites two sets. The smaller representative stays.
  void Unite(int a, int b) {
    a = Find(a), b = Find(b);
    parent[std::max(a, b)] = std::min(a, b);
  }
};

// Unites the sets of each strongly connected component of a graph of their representatives.
void UniteCycles(UnitSets& sets, const std::vector<std::pair<int, int>>& edges);

// Returns the number of units and of pins (units of nets).
inline int64_t GraphSize(const UnitGraph& graph) {
  size_t size = graph.units.size();
  for (const Net& net : graph.nets) size += net.units.size();
  return static_cast<int64_t>(size);
}

// Selects the units without compute to merge with the only unit that they exchange values with,
// which never makes a load larger.
enum class Merge {
  kNone,        // none: with a fixed number of stages they may make one of their own
  kLossless,    // units that hold no memory, or all if no memory limit can bind
  kParameters,  // all: under a tight limit the best partition may be lost
};

// Makes a unit of each group, or of several groups that lie on a cycle. Backward nodes without a
// forward node in their group are ordered by the mirrored edges of the backward part, as in
// Tarnawski et al., appendix B.
UnitGraph BuildUnits(const PartitionProblem& problem, Merge merge);

// Makes a unit of each group of units. `group_of` numbers the groups in a topological order of the
// result. Drops nets within a group; does not merge nets of the same groups.
UnitGraph Coarsen(const UnitGraph& graph, const std::vector<int>& group_of, int groups);

// Returns kNone if the number of stages is fixed, else kLossless.
Merge ExactMerge(const PartitionProblem& problem);

}  // namespace pipewright
