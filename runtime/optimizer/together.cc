#include "runtime/optimizer/together.h"

#include <ATen/ATen.h>

#include <map>
#include <tuple>
#include <utility>

namespace pipewright {

namespace {

using Tensors = std::vector<at::Tensor>;

// Parameters that one call updates: what it takes as numbers is the same for all of them.
struct Group {
  OptimizerJob job;
  int64_t steps = 0, divisor = 1;
  bool first = false;  // there was no momentum before
  Tensors parameters, gradients, momentum, average, average_sq, largest_sq;
};

void Add(Group& group, const ParameterUpdate& update) {
  group.parameters.push_back(update.parameter);
  group.gradients.push_back(update.gradient);
  OptimizerState& state = *update.state;
  for (auto& [list, tensor] :
       {std::pair(&group.momentum, &state.momentum), std::pair(&group.average, &state.average),
        std::pair(&group.average_sq, &state.average_sq),
        std::pair(&group.largest_sq, &state.largest_sq)})
    if (tensor->defined()) list->push_back(*tensor);
}

// The kernels read each parameter's number of steps on the device.
Tensors Steps(const Group& group) {
  const at::Tensor steps = at::full({}, static_cast<double>(group.steps),
                                    group.parameters[0].options().dtype(at::kFloat));
  return Tensors(group.parameters.size(), steps);
}

void Rmsprop(Group& group) {
  const OptimizerJob& job = group.job;
  at::_foreach_mul_(group.average_sq, job.alpha);
  at::_foreach_addcmul_(group.average_sq, group.gradients, group.gradients, 1 - job.alpha);
  Tensors roots;
  if (job.centered) {
    at::_foreach_lerp_(group.average, group.gradients, 1 - job.alpha);
    roots = at::_foreach_addcmul(group.average_sq, group.average, group.average, -1);
    at::_foreach_sqrt_(roots);
  } else {
    roots = at::_foreach_sqrt(group.average_sq);
  }
  at::_foreach_add_(roots, job.eps);
  if (job.momentum > 0) {
    at::_foreach_mul_(group.momentum, job.momentum);
    at::_foreach_addcdiv_(group.momentum, group.gradients, roots);
    at::_foreach_add_(group.parameters, group.momentum, -job.lr);
  } else {
    at::_foreach_addcdiv_(group.parameters, group.gradients, roots, -job.lr);
  }
}

void Adagrad(Group& group) {
  const OptimizerJob& job = group.job;
  const double rate = job.lr / (1 + static_cast<double>(group.steps - 1) * job.lr_decay);
  at::_foreach_addcmul_(group.average_sq, group.gradients, group.gradients);
  Tensors roots = at::_foreach_sqrt(group.average_sq);
  at::_foreach_add_(roots, job.eps);
  at::_foreach_addcdiv_(group.parameters, group.gradients, roots, -rate);
}

void Update(Group& group) {
  const OptimizerJob& job = group.job;
  if (group.divisor != 1) at::_foreach_div_(group.gradients, static_cast<double>(group.divisor));
  switch (job.kind) {
    case OptimizerJob::kSgd:
      return at::_fused_sgd_(group.parameters, group.gradients, group.momentum, job.weight_decay,
                             job.momentum, job.lr, job.dampening, job.nesterov, false,
                             group.first && job.momentum != 0);
    case OptimizerJob::kAdam:
      return at::_fused_adam_(group.parameters, group.gradients, group.average, group.average_sq,
                              group.largest_sq, Steps(group), job.lr, job.beta1, job.beta2,
                              job.weight_decay, job.eps, job.amsgrad, false);
    case OptimizerJob::kAdamW:
      return at::_fused_adamw_(group.parameters, group.gradients, group.average, group.average_sq,
                               group.largest_sq, Steps(group), job.lr, job.beta1, job.beta2,
                               job.weight_decay, job.eps, job.amsgrad, false);
    case OptimizerJob::kRmsprop:
    case OptimizerJob::kAdagrad:
      if (job.weight_decay != 0)
        at::_foreach_add_(group.gradients, group.parameters, job.weight_decay);
      return job.kind == OptimizerJob::kRmsprop ? Rmsprop(group) : Adagrad(group);
    case OptimizerJob::kMuon:
      TORCH_CHECK(false, "Muon updates each matrix by itself");
  }
}

}  // namespace

bool UpdatesTogether(c10::Device device, const OptimizerJob& job) {
  return device.is_cuda() && job.kind != OptimizerJob::kMuon && !job.state_on_disk;
}

void OptimizerStepTogether(const std::vector<ParameterUpdate>& updates) {
  at::NoGradGuard no_grad;
  using Key = std::tuple<int, double, double, at::ScalarType, int64_t, bool, int64_t>;
  std::map<Key, Group> groups;
  for (const ParameterUpdate& update : updates) {
    const OptimizerJob& job = *update.job;
    OptimizerState& state = *update.state;
    const at::ScalarType type = update.parameter.scalar_type();
    // The kernels want the tensors of a parameter to lie in memory alike.
    if (update.parameter.is_complex() || update.gradient.scalar_type() != type ||
        update.gradient.strides() != update.parameter.strides()) {
      at::Tensor parameter = update.parameter, gradient = update.gradient;
      OptimizerJob own = job;
      own.lr = update.lr;
      OptimizerStep(own, parameter, gradient, state, update.divisor);
      continue;
    }
    ++state.steps;
    const bool first = !state.momentum.defined();
    MakeState(job, update.parameter, state);
    Group& group =
        groups[{job.kind, update.lr, job.weight_decay, type, state.steps, first, update.divisor}];
    if (group.parameters.empty()) {
      group.job = job;
      group.job.lr = update.lr;
      group.steps = state.steps, group.divisor = update.divisor, group.first = first;
    }
    Add(group, update);
  }
  for (auto& [key, group] : groups) Update(group);
}

}  // namespace pipewright
