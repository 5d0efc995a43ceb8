// Random operations draw from generators of their own.
#pragma once
#include "passes/model.h"

namespace pipewright {

// Dropout, attention with dropout and PyTorch's random operators (rand, bernoulli, ...) get an id,
// counted in the order of the graph, and draw from a generator made of (seed, step, microbatch,
// id). Throws Error naming the node for a random operator that cannot.
void RewriteRandomOperations(Model& model);

}  // namespace pipewright
