// Profiles of microbatch sizes that were not measured, from those that were.
#pragma once
#include <cstdint>
#include <set>
#include <vector>

#include "formats/profile/profile.h"
#include "plan/tune/problem.h"

namespace pipewright {

// Returns the sizes to measure among `sizes`: the least, the largest, `own`, and in between at most
// every second one.
std::set<int64_t> SizesToMeasure(const std::set<int64_t>& sizes, int64_t own);

// Returns the profile of `size` samples, between two of the same modules: every time and every
// number of bytes is on a line through the two. `below` and `above` may be the same profile.
Profile InterpolateProfile(const Profile& below, const Profile& above, int64_t size);

// Replaces the times of the problem's profiles by those of the mean microbatch, where some
// microbatches of a step are smaller than the profile's. The mean is on a line through the next
// smaller profile of as many ranks and threads, or through zero. Memory stays that of the largest.
void CountSmallerMicrobatches(TuneProblem& problem);

// Returns the relative errors of the time of all modules if each profile but the first and the last
// is interpolated from its neighbors. `profiles` are ascending by size.
std::vector<double> InterpolationErrors(const std::vector<const Profile*>& profiles);

}  // namespace pipewright
