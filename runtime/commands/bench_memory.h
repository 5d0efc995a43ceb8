// Measures for `bench` what a rank holds in memory.
#pragma once
#include <map>

#include "runtime/measure/metered_stages.h"
#include "runtime/session.h"

namespace pipewright {

struct RankBytes {
  int64_t held = 0;  // before a step
  int64_t peak = 0;  // the most in a step of the run's plan
  int64_t forward_only_peak = 0;  // the most in a sweep without backward; 0: weights are on disk
  // By stage of this rank, for one microbatch: where nothing is computed again but the job's single
  // modules, and where all is.
  std::map<int, StageBytes> stages, again;
};

// Runs steps of the run's plan, few of two microbatches for each replica, whole and in halves, and
// sweeps forward only over as many microbatches as a step has. `step` counts the steps. `meter` has
// counted on this thread since before the session was opened. Collective; throws like
// Session::Step.
RankBytes MeasureBytes(Session& session, Microbatches& source, int64_t& step, MemoryMeter& meter);

// Bytes of the weights of a stage, on disk or not, and of those that are trained.
struct WeightBytes {
  double all = 0, in_memory = 0, trained = 0;
};
WeightBytes WeightBytesOf(const Session& session, int stage);

}  // namespace pipewright
