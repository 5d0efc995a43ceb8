// Measures the memory and time that the losses of one microbatch take by themselves.
#pragma once
#include <cstdint>
#include <map>

#include "runtime/measure/memory_meter.h"
#include "runtime/session.h"

namespace pipewright {

struct LossCosts {
  int64_t kept = 0;                  // until the backward
  int64_t peak = 0;                  // the most at any time, with the gradients of the outputs
  double forward = 0, backward = 0;  // seconds
};

// Computes the losses of this rank's stages and their gradients, from outputs and targets of zeros.
// Returns the costs by stage; bytes are without those of the outputs. A loss counts as nothing if
// the model computes it, its output takes no gradient, or sizes depend on the data. `meter` must
// count on this thread. Collective.
std::map<int, LossCosts> MeasureLosses(Session& session, Microbatches& source, MemoryMeter& meter);

}  // namespace pipewright
