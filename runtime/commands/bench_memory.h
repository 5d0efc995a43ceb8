// Measures for `bench` what a rank holds in memory.
#pragma once
#include <map>

#include "runtime/measure/loss_costs.h"
#include "runtime/measure/metered_stages.h"
#include "runtime/session.h"

namespace pipewright {

struct RankBytes {
  int64_t held = 0;  // before a step
  int64_t peak = 0;  // the most in a step of the run's plan
  int64_t forward_only_peak = 0;  // the most in a forward-only sweep; 0: weights are on disk
  // By stage of this rank, for one microbatch: with only the modules recomputed that the job names,
  // and with all recomputed.
  std::map<int, StageBytes> stages, again;
  std::map<int, LossCosts> losses;  // a part of those, by stage
};

// Runs steps of the run's plan, small steps of two microbatches per replica with the backward whole
// and split, and forward-only sweeps over as many microbatches as a step has, and computes the
// losses by themselves. `step` counts the steps. `meter` must count on this thread since before the
// session was opened. Collective; throws like Session::Step.
RankBytes MeasureBytes(Session& session, Microbatches& source, int64_t& step, MemoryMeter& meter);

// Bytes of a stage's weights: all, those in memory (not on disk), and those that are trained.
struct WeightBytes {
  double all = 0, in_memory = 0, trained = 0;
};
WeightBytes WeightBytesOf(const Session& session, int stage);

}  // namespace pipewright
