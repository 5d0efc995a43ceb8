// A partition problem reduced to what may be separated: units, and nets of units between which
// values travel.
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

// A set of units that share values: every stage that holds some of them but not all pays.
struct Net {
  std::vector<int> units;  // ascending, at least two
  double time = 0, transfers = 0, bytes = 0;
  double stash_bytes = 0;  // of every stage that holds some of them or all
};

struct UnitGraph {
  std::vector<Unit> units;  // numbered in a topological order
  std::vector<Net> nets;    // no two of the same units
  std::vector<std::vector<int>> nets_of;
  std::vector<std::vector<int>> next, previous;  // the order that stages must keep
};

// Disjoint sets of numbers.
struct UnitSets {
  std::vector<int> parent;
  explicit UnitSets(int size) : parent(size) { std::iota(parent.begin(), parent.end(), 0); }
  int Find(int i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  }
  // The smaller number stays the representative.
  void Unite(int a, int b) {
    a = Find(a), b = Find(b);
    parent[std::max(a, b)] = std::min(a, b);
  }
};

// Unites the sets of each strongly connected component of a graph of their representatives.
void UniteCycles(UnitSets& sets, const std::vector<std::pair<int, int>>& edges);

// Units, and places of nets at units.
inline int64_t GraphSize(const UnitGraph& graph) {
  size_t size = graph.units.size();
  for (const Net& net : graph.nets) size += net.units.size();
  return static_cast<int64_t>(size);
}

// Units without compute join the only unit that they exchange values with. That never makes a load
// larger.
enum class Merge {
  kNone,        // none: with a fixed number of stages they may make one of their own
  kLossless,    // those that hold no memory, or all where no memory limit can bind
  kParameters,  // all: under a tight limit the best partition may be lost
};

// Groups become units, and so do groups that could only be separated by a cycle. Backward nodes
// without a forward node in their group take the place that mirrors the edges of the backward part,
// as in Tarnawski et al., appendix B.
UnitGraph BuildUnits(const PartitionProblem& problem, Merge merge);

// Groups of units as units. `group_of` numbers them in a topological order of the result. Nets
// within a group disappear; others are not merged though their groups be the same.
UnitGraph Coarsen(const UnitGraph& graph, const std::vector<int>& group_of, int groups);

// kNone where the number of stages is fixed, else kLossless.
Merge ExactMerge(const PartitionProblem& problem);

}  // namespace pipewright
