#include "runtime/optimizer/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>

#include <algorithm>
#include <cmath>

namespace pipewright {

// Elements of a tensor that are updated together, so that the six tensors of an update (128 KiB
// each) stay in a core's cache between its operations.
static constexpr int64_t kUpdatedTogether = 1 << 15;

// Does tensor.mul_(factor) as in Python. LibTorch's mul_(double) first rounds the factor to the
// tensor's dtype: 0.999 becomes 1 in bfloat16.
static at::Tensor& Scale(at::Tensor& tensor, double factor) {
  return tensor.mul_(at::native::wrapped_scalar_tensor(factor));
}

static at::Tensor Decayed(const OptimizerJob& job, const at::Tensor& parameter,
                          const at::Tensor& gradient) {
  return job.weight_decay != 0 ? gradient.add(parameter, job.weight_decay) : gradient;
}

static void Sgd(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                OptimizerState& state, bool first) {
  gradient = Decayed(job, parameter, gradient);
  if (job.momentum != 0) {
    if (first)
      state.momentum.copy_(gradient);
    else
      Scale(state.momentum, job.momentum).add_(gradient, 1 - job.dampening);
    gradient = job.nesterov ? gradient.add(state.momentum, job.momentum) : state.momentum;
  }
  parameter.add_(gradient, -job.lr);
}

static void Adam(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                 OptimizerState& state) {
  if (job.kind == OptimizerJob::kAdam)
    gradient = Decayed(job, parameter, gradient);
  else if (job.weight_decay != 0)
    Scale(parameter, 1 - job.lr * job.weight_decay);
  state.average.lerp_(gradient, 1 - job.beta1);
  Scale(state.average_sq, job.beta2).addcmul_(gradient, gradient, 1 - job.beta2);
  double steps = static_cast<double>(state.steps);
  double correction1 = 1 - std::pow(job.beta1, steps);
  double correction2 = 1 - std::pow(job.beta2, steps);
  at::Tensor square = state.average_sq;
  if (job.amsgrad) {
    at::maximum_out(state.largest_sq, state.largest_sq, state.average_sq);
    square = state.largest_sq;
  }
  at::Tensor denominator = (square.sqrt() / std::sqrt(correction2)).add_(job.eps);
  parameter.addcdiv_(state.average, denominator, -(job.lr / correction1));
}

static void Rmsprop(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                    OptimizerState& state) {
  gradient = Decayed(job, parameter, gradient);
  Scale(state.average_sq, job.alpha).addcmul_(gradient, gradient, 1 - job.alpha);
  at::Tensor root;
  if (job.centered) {
    state.average.lerp_(gradient, 1 - job.alpha);
    root = state.average_sq.addcmul(state.average, state.average, -1).sqrt_();
  } else {
    root = state.average_sq.sqrt();
  }
  root.add_(job.eps);
  if (job.momentum > 0) {
    Scale(state.momentum, job.momentum).addcdiv_(gradient, root);
    parameter.add_(state.momentum, -job.lr);
  } else {
    parameter.addcdiv_(gradient, root, -job.lr);
  }
}

static void Adagrad(const OptimizerJob& job, at::Tensor& parameter, at::Tensor gradient,
                    OptimizerState& state) {
  gradient = Decayed(job, parameter, gradient);
  double rate = job.lr / (1 + static_cast<double>(state.steps - 1) * job.lr_decay);
  state.average_sq.addcmul_(gradient, gradient, 1);
  parameter.addcdiv_(gradient, state.average_sq.sqrt().add_(job.eps), -rate);
}

// Approximates the matrix nearest to `matrix` with orthonormal rows or columns, by the
// Newton-Schulz iteration in bfloat16.
static at::Tensor Orthogonal(const OptimizerJob& job, const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  const auto [a, b, c] = job.ns_coefficients;
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (tall) x = x.t();
  x.div_(x.norm().clamp(job.eps));
  for (int step = 0; step < job.ns_steps; ++step) {
    at::Tensor gram = at::matmul(x, x.t());
    at::Tensor update = at::addmm(gram, gram, gram, b, c);
    x = at::addmm(x, update, x, a);
  }
  return tall ? x.t() : x;
}

static void Muon(const OptimizerJob& job, at::Tensor& parameter, const at::Tensor& gradient,
                 OptimizerState& state) {
  const double rows = static_cast<double>(parameter.size(0));
  const double columns = static_cast<double>(parameter.size(1));
  state.momentum.lerp_(gradient, 1 - job.momentum);
  at::Tensor update =
      Orthogonal(job, job.nesterov ? gradient.lerp(state.momentum, job.momentum) : state.momentum);
  const double ratio = job.adjust_lr == OptimizerJob::kOriginal
                           ? std::sqrt(std::max(1.0, rows / columns))
                           : 0.2 * std::sqrt(std::max(rows, columns));
  Scale(parameter, 1 - job.lr * job.weight_decay);
  parameter.add_(update, -(job.lr * ratio));
}

static void Update(const OptimizerJob& job, at::Tensor& parameter, const at::Tensor& gradient,
                   OptimizerState& state, bool first) {
  switch (job.kind) {
    case OptimizerJob::kSgd:
      return Sgd(job, parameter, gradient, state, first);
    case OptimizerJob::kAdam:
    case OptimizerJob::kAdamW:
      return Adam(job, parameter, gradient, state);
    case OptimizerJob::kRmsprop:
      return Rmsprop(job, parameter, gradient, state);
    case OptimizerJob::kAdagrad:
      return Adagrad(job, parameter, gradient, state);
    case OptimizerJob::kMuon:
      return Muon(job, parameter, gradient, state);
  }
}

void MakeState(const OptimizerJob& job, const at::Tensor& parameter, OptimizerState& state) {
  auto keep = [&](at::Tensor& tensor, bool kept, double value = 0) {
    if (!kept || tensor.defined()) return;
    at::Scalar begin = value;
    if (parameter.is_complex()) begin = c10::complex<double>(value, value);
    tensor = at::full_like(parameter, begin);
  };
  const bool adam = job.kind == OptimizerJob::kAdam || job.kind == OptimizerJob::kAdamW;
  const bool rmsprop = job.kind == OptimizerJob::kRmsprop;
  keep(state.momentum, job.kind == OptimizerJob::kMuon ||
                           ((job.kind == OptimizerJob::kSgd || rmsprop) && job.momentum != 0));
  keep(state.average, adam || (rmsprop && job.centered));
  keep(state.average_sq, adam || rmsprop);
  keep(state.average_sq, job.kind == OptimizerJob::kAdagrad, job.initial_accumulator);
  keep(state.largest_sq, adam && job.amsgrad);
}

static void UpdateInBlocks(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                           OptimizerState& state, bool first, int64_t divisor) {
  std::vector<at::Tensor*> tensors = {&parameter, &gradient};
  for (auto& [name, tensor] : state.Named())
    if (tensor->defined()) tensors.push_back(tensor);
  const int64_t elements = parameter.numel();
  const bool in_blocks = parameter.is_cpu() && job.kind != OptimizerJob::kMuon &&
                         elements > kUpdatedTogether &&
                         std::all_of(tensors.begin(), tensors.end(),
                                     [](const at::Tensor* t) { return t->is_contiguous(); });
  if (!in_blocks) {
    if (divisor != 1) gradient.div_(divisor);
    return Update(job, parameter, gradient, state, first);
  }
  at::parallel_for(
      0, (elements + kUpdatedTogether - 1) / kUpdatedTogether, 1, [&](int64_t begin, int64_t end) {
        at::NoGradGuard no_grad_here;
        for (int64_t block = begin; block < end; ++block) {
          auto part = [&](const at::Tensor& tensor) {
            const int64_t at = block * kUpdatedTogether;
            return tensor.view(-1).narrow(0, at, std::min(kUpdatedTogether, elements - at));
          };
          at::Tensor parameters = part(parameter), gradients = part(gradient);
          OptimizerState states = state;
          for (auto& [name, tensor] : states.Named())
            if (tensor->defined()) *tensor = part(*tensor);
          if (divisor != 1) gradients.div_(divisor);
          Update(job, parameters, gradients, states, first);
        }
      });
}

void OptimizerStep(const OptimizerJob& job, at::Tensor& parameter, at::Tensor& gradient,
                   OptimizerState& state, int64_t divisor) {
  at::NoGradGuard no_grad;
  ++state.steps;
  const bool first = !state.momentum.defined();
  MakeState(job, parameter, state);
  if (!parameter.is_complex() || job.kind == OptimizerJob::kSgd)
    return UpdateInBlocks(job, parameter, gradient, state, first, divisor);
  // All optimizers except SGD treat a complex number as two parameters. PyTorch divides the complex
  // gradient and adds the weight decay to it, which rounds differently.
  at::Tensor parts = at::view_as_real(parameter), whole = gradient.resolve_conj();
  if (divisor != 1) whole.div_(divisor);
  OptimizerJob rest = job;
  if (job.kind != OptimizerJob::kAdamW && job.kind != OptimizerJob::kMuon) {
    whole = Decayed(job, parameter, whole);
    rest.weight_decay = 0;
  }
  at::Tensor gradients = at::view_as_real(whole);
  OptimizerState states = state;
  for (auto& [name, tensor] : states.Named())
    if (tensor->defined()) *tensor = at::view_as_real(*tensor);
  UpdateInBlocks(rest, parts, gradients, states, first, /*divisor=*/1);
}

}  // namespace pipewright
