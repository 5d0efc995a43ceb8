// The gradients of torch.cond, which gives zeros, not none, to operands that get no gradient in the
// branch taken, so that optimizers step their weights:
//   pipewright::cond_operand(Tensor(a) operand) -> Tensor(a)
//   pipewright::cond_results(Tensor(a)[] results, Tensor[] operands) -> Tensor(a)[]
// A branch computes with what cond_operand returns. Once one of the results has a gradient, every
// one of `operands`, and every other result, gets a gradient of zeros if it gets no other.
#pragma once

namespace pipewright {

// Registers the operators, once.
bool RegisterCondGradients();

}  // namespace pipewright
