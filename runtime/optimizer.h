// Optimizers whose bits are those of Python's PyTorch: the same operations in the same order.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/optimizer_job.h"

namespace pipewright {

// State of one parameter; undefined until its first step.
struct OptimizerState {
  at::Tensor momentum;    // SGD, RMSprop, Muon
  at::Tensor average;     // Adam, AdamW; RMSprop where centered
  at::Tensor average_sq;  // Adam, AdamW, RMSprop; Adagrad: the sum
  at::Tensor largest_sq;  // Adam, AdamW with amsgrad
  at::Tensor master;      // the parameter in float32, where it has 16 bits itself
  int64_t steps = 0;

  // The tensors under the names that checkpoints give them.
  std::vector<std::pair<std::string, at::Tensor*>> Named() {
    return {{"momentum_buffer", &momentum},
            {"exp_avg", &average},
            {"exp_avg_sq", &average_sq},
            {"max_exp_avg_sq", &largest_sq},
            {"master", &master}};
  }
};

// One step of torch/optim/{sgd,adam,rmsprop,adagrad,_muon}.py's _single_tensor_* (PyTorch 2.13), in
// place, without gradient mode, with `gradient` divided by `divisor`; `job.lr` is that of this
// step. `gradient` may be overwritten. Large tensors are updated block by block (not by Muon, which
// needs matrices whole): the same bits, fewer passes through memory.
void OptimizerStep(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                   OptimizerState& state, int64_t divisor = 1);

}  // namespace pipewright
