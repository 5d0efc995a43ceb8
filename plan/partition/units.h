// A partition problem reduced to what may be separated: units, and nets of units between which
// values travel.
#pragma once
#include <utility>
#include <vector>

#include "plan/partition/problem.h"

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
};

struct UnitGraph {
  std::vector<Unit> units;  // numbered in a topological order
  std::vector<Net> nets;    // no two of the same units
  std::vector<std::vector<int>> nets_of;
  std::vector<std::vector<int>> next, previous;  // the order that stages must keep
};

// Groups become units, and so do groups that could only be separated by a cycle. Backward nodes
// without a forward node in their group take the place that mirrors the edges of the backward part,
// as in Tarnawski et al., appendix B. A unit that costs no time and has one neighbour joins it:
// that never makes a load larger. With `merge_parameters` also where it holds memory, which may
// matter under a tight limit; without, only where it holds none or no limit can bind.
UnitGraph BuildUnits(const PartitionProblem& problem, bool merge_parameters);

}  // namespace pipewright
