#include "runtime/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

namespace pipewright {

static void Sgd(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                OptimizerState& state) {
  if (job.weight_decay != 0) gradient = gradient.add(parameter, job.weight_decay);
  if (job.momentum != 0) {
    if (!state.momentum.defined())
      state.momentum = gradient.clone();
    else
      state.momentum.mul_(job.momentum).add_(gradient, 1 - job.dampening);
    gradient = job.nesterov ? gradient.add(state.momentum, job.momentum) : state.momentum;
  }
  parameter.add_(gradient, -job.lr);
}

static void AdamW(const OptimizerJob& job, at::Tensor& parameter, const at::Tensor& gradient,
                  OptimizerState& state) {
  if (!state.average.defined()) {
    state.average = at::zeros_like(parameter);
    state.average_sq = at::zeros_like(parameter);
  }
  if (job.weight_decay != 0) parameter.mul_(1 - job.lr * job.weight_decay);
  state.average.lerp_(gradient, 1 - job.beta1);
  state.average_sq.mul_(job.beta2).addcmul_(gradient, gradient, 1 - job.beta2);
  double steps = static_cast<double>(state.steps);
  double correction1 = 1 - std::pow(job.beta1, steps);
  double correction2 = 1 - std::pow(job.beta2, steps);
  at::Tensor denominator = (state.average_sq.sqrt() / std::sqrt(correction2)).add_(job.eps);
  parameter.addcdiv_(state.average, denominator, -(job.lr / correction1));
}

void OptimizerStep(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                   OptimizerState& state) {
  at::NoGradGuard no_grad;
  ++state.steps;
  if (job.kind == OptimizerJob::kSgd)
    Sgd(job, parameter, gradient, state);
  else
    AdamW(job, parameter, gradient, state);
}

}  // namespace pipewright
