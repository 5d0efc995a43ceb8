// Finds where NaN and infinity come from, and keeps those that training made from being saved.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/session.h"

namespace pipewright {

// A loss that this rank computed in a step and that is not finite.
struct BadLoss {
  int64_t minibatch = 0;
  int microbatch = 0, loss = 0;
  double value = 0;
};
// Returns the first in the terms of the minibatch that has just run.
std::optional<BadLoss> FindBadLoss(const Session& session, int64_t minibatch);

// Returns true if the outcome of the step that has run must end the run. Uses only what the ranks
// have agreed on.
bool MustStop(const Session& session);

// Throws, on every rank, an Error with the same text, which names the first of these that is not
// finite: a sample, a weight, a value that a module computed (if the stages have watched the step
// run again), a loss, a gradient. Call it in a step that no rank has committed. Collective.
// Sets session.told_not_finite, since then no other rank waits for this one.
[[noreturn]] void ThrowNotFinite(Session& session, Microbatches& source, int64_t step,
                                 const std::optional<BadLoss>& loss);

// Throws Error if a tensor that is to be saved, or was, as `name` in a checkpoint of the run
// ("weight", "exp_avg/weight", "buffer/running_mean") holds NaN or infinity that training has made.
// Those that the weights had when they were loaded are allowed.
void CheckSaved(const Session& session, const std::string& name, const at::Tensor& tensor);
// Does the same for all weights and buffers of this rank.
void CheckSavedWeights(const Session& session);

}  // namespace pipewright
