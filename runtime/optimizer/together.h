// Updates many parameters by a few kernels, where a kernel for each operation on each parameter
// would cost more to launch than to run.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "formats/optimizer_job.h"
#include "runtime/optimizer/optimizer.h"

namespace pipewright {

// Returns true if parameters on `device` are updated together. On CPUs and other devices, each is
// updated by itself, with PyTorch's bits.
bool UpdatesTogether(c10::Device device, const OptimizerJob& job);

struct ParameterUpdate {
  const OptimizerJob* job = nullptr;
  double lr = 0;                   // in this step, instead of the job's
  at::Tensor parameter, gradient;  // may be overwritten
  OptimizerState* state = nullptr;
  int64_t divisor = 1;
};

// Does OptimizerStep on each, except for rounding, without gradient mode. SGD, Adam and AdamW use
// LibTorch's fused kernels (torch/optim/*.py with fused=True), RMSprop and Adagrad those for lists
// of tensors (foreach=True). Muon is not supported.
void OptimizerStepTogether(const std::vector<ParameterUpdate>& updates);

}  // namespace pipewright
