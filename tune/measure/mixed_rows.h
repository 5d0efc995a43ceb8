// Finds out whether the results of a model depend on the size of its microbatches because its
// forward combines samples of a microbatch in a way that its code does not show.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "formats/job.h"
#include "formats/manifest.h"
#include "tune/job/request.h"
#include "tune/measure/budget.h"

namespace pipewright {

// Trains two steps with the job's own microbatches, and two with microbatches of another of
// `sizes`, or takes what an earlier tune found. (If weights start at zero, only the second step
// tells.) Losses that are computed with 16-bit numbers tell little, so these compare gradients,
// too. If forward draws random numbers in training, computes losses in evaluation after one step
// instead.
// Returns why the size must stay: the losses differ by more than rounding, or that is not known,
// because the budget is over, the data is not here, or nothing runs. "" if it need not.
std::string WhyRowsMix(const TuneRequest& request, const Job& job, const Manifest& manifest,
                       const std::set<int64_t>& sizes, const TuneBudget& budget);

// Returns true if some of a package's forward is computed with 16-bit numbers.
bool ComputesIn16Bits(const std::string& package, const Manifest& manifest);

// Returns true if the losses of two runs differ by more than rounding. `narrow`: some of the model
// is computed with 16-bit numbers.
bool LossesDiffer(double loss, double other, bool narrow);

}  // namespace pipewright
