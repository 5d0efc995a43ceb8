// The losses of a session: which outputs they are, and where they come together.
#pragma once
#include "runtime/session.h"

namespace pipewright {

// Finds the outputs that the job names, and that training reaches a weight. Throws Error.
void CheckLosses(Session& session, bool training);

// That each loss can be computed from its output and target, of what a source brings. `specs`: of
// all values, as far as they are known. Throws Error.
void CheckTargets(const Session& session, const std::vector<TensorSpec>& specs,
                  Microbatches& source);

// After a minibatch: each rank has the losses that it has computed, one gets all. Collective over
// the ranks that compute any.
void GatherLosses(Session& session);

// Then, on the rank that has all: into `session`, and into `evaluation`.
void KeepLosses(Session& session);
void AddLosses(Session& session, Evaluation& evaluation);

}  // namespace pipewright
