// Finds the values through which a gradient flows.
#pragma once
#include <unordered_set>

#include "passes/graph/model.h"

namespace pipewright {

// Returns floating-point and complex tensors that depend on a trainable parameter through
// differentiable operations outside torch.no_grad(). May include a value that autograd treats as
// constant, but never omits one that has a gradient.
std::unordered_set<const torch::jit::Value*> ValuesWithGradient(const Model& model);

}  // namespace pipewright
