// The memory that a job keeps for the parameters it trains.
#pragma once
#include <cstdint>
#include <vector>

#include "formats/job.h"
#include "plan/tune/problem.h"

namespace pipewright {

// Sets in all profiles of `problem`, which are of the package as it is, the bytes of gradients to
// those of the job, and adds the bytes of its optimizer to the modules: frozen parameters have
// neither, state on disk takes no memory, and 16-bit parameters may have 32-bit copies. Counts
// gradients twice if a step accumulates minibatches: that is the most that they may take. Under a
// memory limit, counts checks of modules that may be lists of operations (TuneProfile::checks). The
// manifest of `problem` says what is frozen.
void CountOptimizer(const Job& job, TuneProblem& problem);

// After CountOptimizer, makes all modules compute with autograd, so without checks, in the times of
// the profile. Returns false if that changes nothing: the job says which body modules have, they
// compute with autograd already, no memory is limited, or the job is not for CPUs.
bool UseAutograd(const Job& job, TuneProblem& problem);

// After CountOptimizer, returns by how many bytes checks of lists of operations raise the predicted
// peak of each rank of a candidate. A run of a few steps hardly ever has a check: one microbatch in
// a thousand is checked.
std::vector<double> CheckBytes(const Job& job, const TuneProblem& problem,
                               const TuneCandidate& candidate);

// Returns the bytes of a rank's sums of gradients.
int64_t GradientBytes(const Job& job, const TuneProblem& problem, const Conf& conf, int rank);

}  // namespace pipewright
