// Optimizers whose bits are those of Python's PyTorch: the same operations in the same order.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/job.h"

namespace pipewright {

// State of one parameter; undefined until its first step.
struct OptimizerState {
  at::Tensor momentum;             // SGD
  at::Tensor average, average_sq;  // AdamW
  int64_t steps = 0;

  // The tensors under the names that checkpoints give them.
  std::vector<std::pair<std::string, at::Tensor*>> Named() {
    return {{"momentum_buffer", &momentum}, {"exp_avg", &average}, {"exp_avg_sq", &average_sq}};
  }
};

// One step of torch/optim/{sgd,adam}.py's _single_tensor_* (PyTorch 2.13), in place, without
// gradient mode. `gradient` may be overwritten.
void OptimizerStep(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                   OptimizerState& state);

}  // namespace pipewright
