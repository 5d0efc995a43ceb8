// The gradients of torch.cond: operands that the branch taken does not use get zeros, not none, so
// that optimizers step their weights.
//   pipewright::with_zero_gradients(Tensor value, Tensor[] unused) -> Tensor
// Returns a copy of `value`. Its backward gives zeros to each of `unused` that requires a gradient.
#pragma once

namespace pipewright {

// Registers the operator, once.
bool RegisterZeroGradients();

}  // namespace pipewright
