// Losses of a microbatch: means over it, as torch.nn.functional computes them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cmath>

#include "plan/job.h"
#include "runtime/shapes.h"

namespace pipewright {

// Throws Error where the loss cannot be computed from an output and a target of these types and
// sizes; `name` is the target's. The target of a loss that the model computes is not looked at.
void CheckLoss(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
               const std::string& name);

// A scalar. cross_entropy takes logits [..., C] and int64 targets [...]; both are flattened, logits
// of less than 32 bits computed in float32. mse takes equal shapes. Throws Error for others, which
// calls the target `name`. Of ignored targets only, the loss is 0.
at::Tensor Loss(const LossJob& job, const at::Tensor& output, const at::Tensor& target,
                const std::string& name);

// How many numbers a microbatch's loss is the mean of: targets that are not ignored, elements
// (mse), or `samples` where the model computes its loss.
int64_t LossCount(const LossJob& job, const at::Tensor& target, int64_t samples);

// Of cross_entropy: how many targets that count are the class of the largest logit (the first of
// equal ones).
int64_t LossHits(const LossJob& job, const at::Tensor& output, const at::Tensor& target);

// Not a number, without the sign that would be printed ("-nan").
inline double PlainNan(double loss) { return std::isnan(loss) ? std::nan("") : loss; }

}  // namespace pipewright
