// Optimizers that give the same bits as PyTorch's: the same operations in the same order.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats/optimizer_job.h"

namespace pipewright {

// State of one parameter; undefined before its first step.
struct OptimizerState {
  at::Tensor momentum;    // SGD, RMSprop, Muon
  at::Tensor average;     // Adam, AdamW; RMSprop if centered
  at::Tensor average_sq;  // Adam, AdamW, RMSprop; Adagrad: the sum
  at::Tensor largest_sq;  // Adam and AdamW with amsgrad
  at::Tensor master;      // float32 copy of a 16-bit parameter
  int64_t steps = 0;

  // Returns the tensors with their names in checkpoints.
  std::vector<std::pair<std::string, at::Tensor*>> Named() {
    return {{"momentum_buffer", &momentum},
            {"exp_avg", &average},
            {"exp_avg_sq", &average_sq},
            {"max_exp_avg_sq", &largest_sq},
            {"master", &master}};
  }
};

// Creates the state that the job keeps of a parameter, if it is missing. That of momentum has no
// value yet, except with Muon and RMSprop.
void MakeState(const OptimizerJob& job, const at::Tensor& parameter, OptimizerState& state);

// Performs one step of torch/optim/{sgd,adam,rmsprop,adagrad,_muon}.py's _single_tensor_* (PyTorch
// 2.13) in place, without gradient mode, with `gradient` divided by `divisor`; `job.lr` is the rate
// of this step. May overwrite `gradient`. Large tensors are updated block by block (except by Muon,
// which needs whole matrices): the same bits, with fewer passes through memory.
void OptimizerStep(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                   OptimizerState& state, int64_t divisor = 1);

}  // namespace pipewright
