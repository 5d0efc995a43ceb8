// Searches for the best way to run a package: the number of ranks and of microbatches, the cut into
// stages, and the schedule. Predicts the step time of each candidate.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "formats/profile/profile.h"
#include "plan/simulate/lower_bound.h"
#include "plan/tune/stage_order.h"

namespace pipewright {

// A profile of the package's modules, measured while `ranks` ranks ran at the same time.
struct TuneProfile {
  int ranks = 1;
  Profile profile;  // by module, not by part; its `microbatch` is one of the candidate sizes
};

struct TuneProblem {
  Manifest manifest;
  std::vector<TuneProfile> profiles;  // one for each candidate pair of ranks and microbatch size
  int64_t samples = 1;                // per step
  // The job's own number of microbatches for its own size: they need not be of equal size.
  int64_t microbatch_size = 0;
  int microbatches = 0;
  double optimizer_state = 0;         // bytes for each byte of trained parameters
  double memory = kNoLimit;           // bytes that the tensors of a rank may take
  bool recompute = true;              // recompute if a schedule does not fit in memory otherwise
  bool replicas = true;               // allow schedules that run a stage on several ranks
  std::optional<StageOrder> order;    // only schedules whose stages all have this order
};

struct TuneCandidate {
  int ranks = 1;
  int microbatches = 1;
  int64_t microbatch = 1;  // samples of the largest
  std::string schedule;
  bool recompute = false;  // true: every stage recomputes
  Conf conf;
  double step = 0;                 // predicted seconds, without loss and optimizer
  double bound = 0;                // lower bound over all orders of the same actions
  double bubble = 0;               // the idle share of the rank with the most idle time, 0 to 1
  std::vector<double> peak_bytes;  // by rank
};

// Returns the memory of the rank that takes most, in bytes.
double LargestPeak(const TuneCandidate& candidate);

struct TuneResult {
  std::vector<TuneCandidate> best;   // within the memory, the shortest step first
  std::vector<TuneCandidate> large;  // over the limit, smallest peak first; only if `best` is empty
  int simulated = 0;
  int pruned = 0;  // not simulated: their bound is above the last of `best`
  int over = 0;      // simulated, but over the memory limit
  int unfit = 0;     // the schedule is not defined for these numbers, or has another order
};

// Returns the `keep` best candidates. The same problem gives the same result.
TuneResult SearchTune(const TuneProblem& problem, size_t keep);

// Predicts a given configuration: a named schedule with a known conf. Throws Error if the schedule
// is not defined for these numbers.
TuneCandidate Predict(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf,
                      const std::string& schedule, int microbatches, bool recompute);

}  // namespace pipewright
