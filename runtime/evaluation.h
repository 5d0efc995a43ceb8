// Adds up the losses of a sweep over data, and of one microbatch, as weighted sums.
#pragma once
#include <cstdint>
#include <vector>

#include "formats/job.h"
#include "runtime/stage/stage.h"

namespace pipewright {

// Losses over all targets that are not ignored, of one or more sweeps.
struct Evaluation {
  struct Sum {
    double weight = 1;
    double loss = 0;      // sum
    int64_t targets = 0;  // targets that are not ignored
    int64_t correct = 0;  // cross_entropy and nll
    double mean() const { return targets ? loss / static_cast<double>(targets) : 0; }
  };
  std::vector<Sum> losses;  // by loss of the job
  double mean() const;      // the weighted sum of the means
  bool known() const { return !losses.empty() && losses[0].targets > 0; }
};

// Returns the weighted sum of a microbatch's losses.
double TotalLoss(const Job& job, const LossTerms& terms, size_t microbatch);

}  // namespace pipewright
