// The ways to run a package on some ranks, each with its predicted step: which ranks are used, how
// a step's samples are cut into microbatches, which modules make a stage, and the schedule.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "formats/profile/profile.h"
#include "plan/simulate/lower_bound.h"

namespace pipewright {

// A profile of the package's modules, measured while `ranks` ranks were at work at once.
struct TuneProfile {
  int ranks = 1;
  Profile profile;  // of the modules, not of their parts; its `microbatch` is a choice
};

struct TuneProblem {
  Manifest manifest;
  std::vector<TuneProfile> profiles;  // one for each pair of ranks and microbatch to choose from
  int64_t samples = 1;                // of a step
  double optimizer_state = 0;         // bytes a byte of trained parameters
  double memory = kNoLimit;           // bytes that the tensors of a rank may take
  bool recompute = true;              // choose it where a schedule does not fit otherwise
};

struct TuneCandidate {
  int ranks = 1;
  int microbatches = 1;
  int64_t microbatch = 1;  // samples of the largest
  std::string schedule;
  bool recompute = false;  // of every stage
  Conf conf;
  double step = 0;                 // predicted seconds, without loss and optimizer
  double bound = 0;                // no order of the same actions takes less
  double bubble = 0;               // of the rank with the most idle time, 0 to 1
  std::vector<double> peak_bytes;  // by rank
};

struct TuneResult {
  std::vector<TuneCandidate> best;   // within the memory, the shortest step first
  std::vector<TuneCandidate> large;  // over it, the smallest peak first; only while `best` is empty
  int simulated = 0;
  int pruned = 0;    // their bound is above the step of the last of `best`
  int over = 0;      // simulated, and over the memory
  int unfit = 0;     // the schedule is not defined for these numbers
};

// Returns the `keep` best candidates. The same problem gives the same result.
TuneResult SearchTune(const TuneProblem& problem, size_t keep);

// Predicts one way to run that is given: a named schedule of known conf. Throws Error where the
// schedule is not defined for the numbers.
TuneCandidate Predict(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf,
                      const std::string& schedule, int microbatches, bool recompute);

}  // namespace pipewright
