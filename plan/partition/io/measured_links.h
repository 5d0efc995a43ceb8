// Converts the links of a profile for a partition problem: to one bandwidth per pair of ranks.
#pragma once
#include <vector>

#include "formats/profile/profile.h"

namespace pipewright {

struct MeasuredLinks {
  double latency = 0, bandwidth = 0;  // medians, in seconds and bytes per second
  // By rank, the same in both directions. Empty if all pairs are alike or some pair is missing.
  std::vector<std::vector<double>> pairs;
};

// Returns the links. The slower of a pair's two directions counts, because values go one way and
// their gradients the other. Pairs that differ by no more than the spread of the measurements get
// their median: noise would make devices differ, and the search could prove less. `links` must not
// be empty.
MeasuredLinks FiguresOf(const std::vector<ProfileLink>& links);

}  // namespace pipewright
