#include "runtime/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

namespace pipewright {

static at::Tensor& ZerosUnlessThere(at::Tensor& state, const at::Tensor& parameter) {
  if (!state.defined()) state = at::zeros_like(parameter);
  return state;
}

static at::Tensor Decayed(const OptimizerJob& job, const at::Tensor& parameter,
                          const at::Tensor& gradient) {
  return job.weight_decay != 0 ? gradient.add(parameter, job.weight_decay) : gradient;
}

static void Sgd(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                OptimizerState& state) {
  gradient = Decayed(job, parameter, gradient);
  if (job.momentum != 0) {
    if (!state.momentum.defined())
      state.momentum = gradient.clone();
    else
      state.momentum.mul_(job.momentum).add_(gradient, 1 - job.dampening);
    gradient = job.nesterov ? gradient.add(state.momentum, job.momentum) : state.momentum;
  }
  parameter.add_(gradient, -job.lr);
}

static void Adam(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                 OptimizerState& state) {
  if (job.kind == OptimizerJob::kAdam)
    gradient = Decayed(job, parameter, gradient);
  else if (job.weight_decay != 0)
    parameter.mul_(1 - job.lr * job.weight_decay);
  ZerosUnlessThere(state.average, parameter).lerp_(gradient, 1 - job.beta1);
  ZerosUnlessThere(state.average_sq, parameter)
      .mul_(job.beta2)
      .addcmul_(gradient, gradient, 1 - job.beta2);
  double steps = static_cast<double>(state.steps);
  double correction1 = 1 - std::pow(job.beta1, steps);
  double correction2 = 1 - std::pow(job.beta2, steps);
  at::Tensor square = state.average_sq;
  if (job.amsgrad) {
    ZerosUnlessThere(state.largest_sq, parameter);
    at::maximum_out(state.largest_sq, state.largest_sq, state.average_sq);
    square = state.largest_sq;
  }
  at::Tensor denominator = (square.sqrt() / std::sqrt(correction2)).add_(job.eps);
  parameter.addcdiv_(state.average, denominator, -(job.lr / correction1));
}

static void Rmsprop(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                    OptimizerState& state) {
  gradient = Decayed(job, parameter, gradient);
  ZerosUnlessThere(state.average_sq, parameter)
      .mul_(job.alpha)
      .addcmul_(gradient, gradient, 1 - job.alpha);
  at::Tensor root;
  if (job.centered) {
    ZerosUnlessThere(state.average, parameter).lerp_(gradient, 1 - job.alpha);
    root = state.average_sq.addcmul(state.average, state.average, -1).sqrt_();
  } else {
    root = state.average_sq.sqrt();
  }
  root.add_(job.eps);
  if (job.momentum > 0) {
    ZerosUnlessThere(state.momentum, parameter).mul_(job.momentum).addcdiv_(gradient, root);
    parameter.add_(state.momentum, -job.lr);
  } else {
    parameter.addcdiv_(gradient, root, -job.lr);
  }
}

static void Adagrad(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                    OptimizerState& state) {
  gradient = Decayed(job, parameter, gradient);
  double rate = job.lr / (1 + static_cast<double>(state.steps - 1) * job.lr_decay);
  if (!state.average_sq.defined())
    state.average_sq = at::full_like(parameter, job.initial_accumulator);
  state.average_sq.addcmul_(gradient, gradient, 1);
  parameter.addcdiv_(gradient, state.average_sq.sqrt().add_(job.eps), -rate);
}

void OptimizerStep(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                   OptimizerState& state) {
  at::NoGradGuard no_grad;
  ++state.steps;
  switch (job.kind) {
    case OptimizerJob::kSgd:
      return Sgd(job, parameter, gradient, state);
    case OptimizerJob::kAdam:
    case OptimizerJob::kAdamW:
      return Adam(job, parameter, gradient, state);
    case OptimizerJob::kRmsprop:
      return Rmsprop(job, parameter, gradient, state);
    case OptimizerJob::kAdagrad:
      return Adagrad(job, parameter, gradient, state);
  }
}

}  // namespace pipewright
