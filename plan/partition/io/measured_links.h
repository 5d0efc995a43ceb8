// The links of a profile as a partition problem has them: one figure for each pair of ranks.
#pragma once
#include <vector>

#include "formats/profile/profile.h"

namespace pipewright {

struct MeasuredLinks {
  double latency = 0, bandwidth = 0;  // the middle ones; bytes and seconds
  // By rank, the same in both directions. Empty if all pairs are alike or some pair is missing.
  std::vector<std::vector<double>> pairs;
};

// The slower of a pair's two directions counts, because values go one way and their gradients
// the other. Pairs that differ by no more than the measurement's spread get the middle one's
// figure: a difference that is noise would make the devices differ and cost the search its proof.
// `links` must not be empty.
MeasuredLinks FiguresOf(const std::vector<ProfileLink>& links);

}  // namespace pipewright
