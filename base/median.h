// The median of numbers.
#pragma once
#include <vector>

namespace pipewright {

// Returns the mean of the middle two of an even number of values; 0 if there are none.
double Median(std::vector<double> values);

}  // namespace pipewright
