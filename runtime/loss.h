// Losses of a microbatch: means over it, as torch.nn.functional computes them.
#pragma once
#include <ATen/core/Tensor.h>

#include "plan/job.h"

namespace pipewright {

// A scalar. cross_entropy takes logits [..., C] and int64 targets [...]; both are flattened, logits
// of less than 32 bits computed in float32. mse takes equal shapes. Throws Error for others.
at::Tensor Loss(const LossJob& job, const at::Tensor& output, const at::Tensor& target);

}  // namespace pipewright
