#include "runtime/update.h"

#include <ATen/ATen.h>

namespace pipewright {

Updater::Updater(const OptimizerJob& job, int microbatches, bool keep_gradients)
    : job_(job), microbatches_(microbatches), keep_gradients_(keep_gradients) {}

void Updater::Hold(int module, const std::vector<at::Tensor>& weights) {
  std::vector<Parameter>& parameters = modules_[module];
  for (const at::Tensor& weight : weights) parameters.push_back({weight.detach(), {}, {}});
}

void Updater::Step(int module, std::vector<at::Tensor>& gradients) {
  at::NoGradGuard no_grad;
  std::vector<Parameter>& parameters = modules_.at(module);
  for (size_t w = 0; w < gradients.size(); ++w) {
    Parameter& parameter = parameters[w];
    parameter.last_gradient.reset();
    if (!gradients[w].defined()) continue;
    gradients[w].div_(microbatches_);
    if (keep_gradients_) parameter.last_gradient = gradients[w].clone();
    OptimizerStep(job_, parameter.weight, gradients[w], parameter.state);
    gradients[w].reset();
  }
}

OptimizerState& Updater::State(int module, size_t weight) {
  return modules_.at(module).at(weight).state;
}

at::Tensor Updater::LastGradient(int module, size_t weight) const {
  return modules_.at(module).at(weight).last_gradient;
}

}  // namespace pipewright
