// Optimizers whose bits are those of Python's PyTorch: the same operations in the same order.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "plan/job.h"

namespace pipewright {

// State of one parameter; undefined until its first step.
struct OptimizerState {
  at::Tensor momentum;             // SGD
  at::Tensor average, average_sq;  // AdamW
  int64_t steps = 0;
};

// One step of torch/optim/{sgd,adam}.py's _single_tensor_* (PyTorch 2.13), in place, without
// gradient mode. `gradient` may be overwritten.
void OptimizerStep(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                   OptimizerState& state);

}  // namespace pipewright
