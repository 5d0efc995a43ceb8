// Gives random operations their own generators.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Dropout, attention with dropout and PyTorch's random operators (rand, bernoulli, ...) get an id,
// counted in the order of the graph, and draw from a generator seeded by (seed, step, microbatch,
// id). Throws Error naming the node if a random operator does not allow this.
void RewriteRandomOperations(Model& model);

}  // namespace pipewright
