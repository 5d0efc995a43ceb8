// Finds the outputs that the losses of a session use, checks the losses and gathers them.
#pragma once
#include "runtime/session.h"

namespace pipewright {

// Finds the outputs that the losses name. Throws Error if one is missing, or if nothing is trained.
void CheckLosses(Session& session, bool training);

// Throws Error if a loss cannot be computed from its output and the target that a source provides.
// `specs`: those of all values, as far as they are known.
void CheckTargets(const Session& session, const std::vector<TensorSpec>& specs,
                  Microbatches& source);

// Gathers the losses of a minibatch on the rank that has_losses. Collective over the ranks that
// compute any.
void GatherLosses(Session& session);

// Add the gathered losses to `session` or to `evaluation`, on the rank that has_losses.
void KeepLosses(Session& session);
void AddLosses(Session& session, Evaluation& evaluation);

}  // namespace pipewright
