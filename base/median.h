// Computes medians.
#pragma once
#include <vector>

namespace pipewright {

// Returns the median: of an even number of values, the mean of the middle two; 0 if there are none.
double Median(std::vector<double> values);

}  // namespace pipewright
