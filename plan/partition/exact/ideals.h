// Enumerates the sets of units that the last stages can hold: with a unit, everything that must
// come after it. They are the ideals (down-sets) of the graph with its edges reversed.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/partition/problem/unit_set.h"
#include "plan/partition/problem/units.h"

namespace pipewright {

struct Ideals {
  struct Smaller {
    int set, unit;  // the set without `unit`
  };
  std::vector<Bits> sets;  // smallest first; the last is the whole graph
  std::vector<int> first;  // index in `smaller` of each set's first entry; one more at the end
  std::vector<Smaller> smaller;
  std::vector<double> work;                     // device time of units that may run on a device
  std::vector<double> cut_time, cut_transfers;  // cost of the nets with units inside and outside
};

// Returns false if there are more than `max_sets`, or if finding them takes over `max_seconds`.
bool EnumerateIdeals(const UnitGraph& graph, int64_t max_sets, double max_seconds, Ideals& ideals);

// Returns the approximate time to find a set, in nanoseconds.
inline int64_t SetTicks(const UnitGraph& graph) {
  return 1000 + static_cast<int64_t>(graph.units.size());
}

}  // namespace pipewright
