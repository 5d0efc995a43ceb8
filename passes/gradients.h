// Which values a gradient flows back along.
#pragma once
#include <unordered_set>

#include "passes/model.h"

namespace pipewright {

// Floating-point and complex tensors that depend on a trainable parameter through differentiable
// operations outside torch.no_grad(). May name a value that autograd finds constant; never omits
// one that has a gradient.
std::unordered_set<const torch::jit::Value*> ValuesWithGradient(const Model& model);

}  // namespace pipewright
