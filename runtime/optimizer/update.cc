#include "runtime/optimizer/update.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/native/ForeachUtils.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/module/stored_weights.h"
#include "runtime/optimizer/together.h"
#include "tensors/device_memory.h"
#include "tensors/finite.h"
#include "tensors/offload_folder.h"

namespace pipewright {

Updater::Updater(const Manifest& manifest, const OptimizerJob& optimizer,
                 const LossScaleJob& loss_scale, bool keep_gradients, FiniteCheck check)
    : job_(optimizer),
      scale_job_(loss_scale),
      dynamic_(loss_scale.interval > 0),
      keep_gradients_(keep_gradients),
      check_(check) {
  scale_.factor = loss_scale.initial;
  if (job_.kind == OptimizerJob::kMuon && !job_.others)
    throw Error("optimizer.others",
                "is missing: Muon only trains matrices, and others need an optimizer too");
  if (job_.state_on_disk) {
    try {
      folder_ = OffloadFolder::In(job_.state_folder);
    } catch (const Error& e) {
      throw Error("optimizer.state_folder", e.what(), "name a folder of this host's own disk");
    }
  }
  // Parameters are in the order of the model or, if the package does not record it, of the modules.
  std::map<std::string, size_t> index;  // into `order`
  std::vector<std::pair<int, std::string>> order;
  for (const ModuleInfo& module : manifest.modules) {
    names_.emplace_back();
    for (const WeightInfo& info : module.held) {
      names_.back().push_back(NamesOf(manifest, info.name));
      const std::string name = KeptName(manifest, info.name);
      if (info.requires_grad && index.emplace(name, order.size()).second)
        order.emplace_back(info.place < 0 ? INT_MAX : info.place, name);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < order.size(); ++i) index[order[i].second] = i;
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    for (size_t w = 0; w < manifest.modules[m].held.size(); ++w)
      if (const WeightInfo& info = manifest.modules[m].held[w]; info.requires_grad)
        place_[{static_cast<int>(m), w}] =
            static_cast<int>(index.at(KeptName(manifest, info.name)));
}

void Updater::Hold(int module, const std::vector<at::Tensor>& weights) {
  std::vector<Parameter>& parameters = modules_[module];
  for (size_t w = 0; w < weights.size(); ++w) {
    Parameter parameter;
    parameter.weight = weights[w].detach();
    parameter.job =
        OptimizerFor(job_, names_[module][w], weights[w].dim() == 2 && !weights[w].is_complex());
    if (auto place = place_.find({module, w}); place != place_.end())
      parameter.place = place->second;
    parameters.push_back(std::move(parameter));
  }
}

void Updater::Replace(int module, size_t index, const at::Tensor& weight) {
  modules_.at(module).at(index).weight = weight.detach();
}

double Updater::learning_rate() const { return job_.lr * rate_factor_; }

void Updater::Begin(int64_t step, int64_t parts) {
  rate_factor_ = RateFactor(job_.rate, step);
  parts_ = parts;
}

void Updater::Step(int module, std::vector<at::Tensor>& gradients) {
  at::NoGradGuard no_grad;
  std::vector<Parameter>& parameters = modules_.at(module);
  std::vector<Parameter*> ready;
  for (size_t w = 0; w < gradients.size(); ++w) {
    Parameter& parameter = parameters[w];
    parameter.last_gradient.reset();
    if (!gradients[w].defined()) continue;
    trained_ = true;
    parameter.gradient = std::move(gradients[w]);
    gradients[w].reset();
    parameter.divisor = parts_;
    if (check_ == FiniteCheck::kEach && !AllFinite(parameter.gradient))
      throw Error("the gradient of \"" + names_[module][w][0] + "\"",
                  "is " + pipewright::NotFinite(parameter.gradient), kNotFiniteCure);
    if (NeedsNorm() || keep_gradients_) {
      parameter.gradient.div_(parts_);
      parameter.divisor = 1;
    }
    if (scale_.factor != 1)
      parameter.gradient.mul_(at::native::wrapped_scalar_tensor(1 / scale_.factor));
    ready.push_back(&parameter);
  }
  if (!Waits()) Apply(ready);
}

// Loads the state into memory for one step.
void Updater::Fetch(Parameter& parameter) {
  for (const auto& [name, tensor] : parameter.stored)
    for (const auto& [other, to] : parameter.state.Named())
      if (name == other) *to = OnDevice(tensor.Load(), parameter.weight.device());
}

// Writes the state back to disk. Its previous file stays while a checkpoint still copies it.
void Updater::Store(Parameter& parameter) {
  if (!folder_) return;
  parameter.stored.clear();
  for (const auto& [name, tensor] : parameter.state.Named()) {
    if (!tensor->defined()) continue;
    try {
      parameter.stored.emplace_back(name, OffloadedTensor::From(*tensor, name, job_.state_folder));
    } catch (const std::exception& e) {
      throw Error("optimizer.state_folder", e.what(), "name a folder that has room");
    }
    tensor->reset();
  }
}

// Returns true if the optimizer updates a 32-bit copy of the parameter.
bool Updater::HasMaster(const Parameter& parameter) const {
  return job_.master_weights && c10::elementSize(parameter.weight.scalar_type()) == 2;
}

// Makes the copy, if it is missing, and returns the gradient in its type.
static at::Tensor WideGradient(OptimizerState& state, const at::Tensor& weight,
                               at::Tensor& gradient, int64_t divisor) {
  if (!state.master.defined()) state.master = weight.to(at::kFloat);
  return gradient.div_(divisor).to(at::kFloat);
}

void Updater::ApplyAlone(Parameter& parameter) {
  double lr = parameter.job.lr;
  parameter.job.lr = lr * rate_factor_;
  OptimizerState& state = parameter.state;
  Fetch(parameter);
  if (HasMaster(parameter)) {
    at::Tensor gradient =
        WideGradient(state, parameter.weight, parameter.gradient, parameter.divisor);
    OptimizerStep(parameter.job, state.master, gradient, state);
    parameter.weight.copy_(state.master);
  } else {
    OptimizerStep(parameter.job, parameter.weight, parameter.gradient, state, parameter.divisor);
  }
  parameter.job.lr = lr;
  parameter.gradient.reset();
  Store(parameter);
}

void Updater::Apply(const std::vector<Parameter*>& parameters) {
  std::vector<ParameterUpdate> updates;
  std::vector<Parameter*> together;
  for (Parameter* const p : parameters) {
    if (keep_gradients_)
      p->last_gradient = p->gradient.to(p->weight.scalar_type(), /*non_blocking=*/false,
                                        /*copy=*/true);
    if (!UpdatesTogether(p->weight.device(), p->job)) {
      ApplyAlone(*p);
      continue;
    }
    together.push_back(p);
    const double lr = p->job.lr * rate_factor_;
    if (HasMaster(*p)) {
      const at::Tensor gradient = WideGradient(p->state, p->weight, p->gradient, p->divisor);
      updates.push_back({&p->job, lr, p->state.master, gradient, &p->state});
    } else {
      updates.push_back({&p->job, lr, p->weight, p->gradient, &p->state, p->divisor});
    }
  }
  OptimizerStepTogether(updates);
  for (Parameter* const p : together) {
    if (HasMaster(*p)) p->weight.copy_(p->state.master);
    p->gradient.reset();
  }
}

// Returns the norm of all gradients from the individual norms, {dtype of the gradient, norm} in the
// order of the parameters. Has the bits of torch.nn.utils.clip_grad_norm_, which first combines the
// norms of each dtype.
static at::Tensor TotalNorm(const std::vector<std::pair<at::ScalarType, double>>& norms) {
  if (norms.empty()) return at::zeros({});
  at::native::nested_optional_tensorvec_t types(1);
  for (const auto& [type, norm] : norms) types[0].emplace_back(at::empty({0}, type));
  std::vector<at::Tensor> ordered;
  for (const auto& [key, group] :
       at::native::_group_tensors_by_first_tensors_device_and_dtype(types, /*with_indices=*/true))
    for (size_t i : group.second)
      ordered.push_back(at::scalar_tensor(norms[i].second, c10::toRealValueType(norms[i].first)));
  return at::linalg_vector_norm(at::stack(ordered), 2);
}

void Updater::Measure(LateNumbers& late) {
  if (!Waits()) return;
  at::NoGradGuard no_grad;
  for (auto& [module, parameters] : modules_)
    for (Parameter& parameter : parameters) {
      const at::Tensor& gradient = parameter.gradient;
      if (!gradient.defined()) continue;
      if (NeedsNorm())
        late.Add(at::linalg_vector_norm(gradient, 2), &parameter.norm);
      else if (gradient.is_cpu())
        parameter.finite = AllFinite(gradient);
      else
        late.Add(at::isfinite(gradient).all(), &parameter.finite);
    }
  measured_ = true;
}

// Each rank contributes the norms of its parameters; all compute the total from all of them.
StepOutcome Updater::AgreeOnNorm(Transport& transport, bool bad_loss) {
  struct Entry {
    int32_t place;
    int16_t type;  // the gradient's type, or a wider one
    int16_t overflowed;
    double norm;
  };
  constexpr int kBadLoss = 1, kNotFinite = 2;
  bool not_finite = false;
  std::string mine(1, '\0');
  for (auto& [module, parameters] : modules_)
    for (Parameter& parameter : parameters) {
      if (!parameter.gradient.defined()) continue;
      const at::Tensor& gradient = parameter.gradient;
      at::ScalarType type = gradient.scalar_type();
      double norm = parameter.norm;
      // In 16 bits the norm may overflow although the gradient does not; PyTorch then scales the
      // gradient to 0.
      if (!std::isfinite(norm) && c10::elementSize(type) <= 2) {
        type = at::kFloat;
        norm = at::linalg_vector_norm(gradient, 2, {}, false, type).item<double>();
      }
      const Entry entry{parameter.place, static_cast<int16_t>(type), !std::isfinite(norm), norm};
      mine.append(reinterpret_cast<const char*>(&entry), sizeof entry);
      // A norm may overflow where the gradient does not.
      not_finite = not_finite || (entry.overflowed && !AllFinite(gradient));
    }
  mine[0] = static_cast<char>((bad_loss ? kBadLoss : 0) | (not_finite ? kNotFinite : 0));
  StepOutcome outcome;
  std::map<int, std::pair<at::ScalarType, double>> found;  // by place: shared ones once
  bool overflowed = false;
  for (const std::string& bytes : transport.AllGather(mine)) {
    outcome.bad_loss |= (bytes[0] & kBadLoss) != 0;
    outcome.not_finite |= (bytes[0] & kNotFinite) != 0;
    for (size_t at = 1; at < bytes.size(); at += sizeof(Entry)) {
      Entry entry;
      std::memcpy(&entry, bytes.data() + at, sizeof entry);
      found[entry.place] = {static_cast<at::ScalarType>(entry.type), entry.norm};
      overflowed |= entry.overflowed != 0;
    }
  }
  std::vector<std::pair<at::ScalarType, double>> norms;
  for (const auto& [place, norm] : found) norms.push_back(norm);
  at::Tensor total = TotalNorm(norms);
  if (!overflowed && !std::isfinite(total.item<double>())) {
    for (auto& [type, norm] : norms)
      if (c10::elementSize(type) <= 2) type = at::kFloat;
    total = TotalNorm(norms);
  }
  outcome.norm = total.item<double>();
  outcome.skipped = scale_job_.used && overflowed;
  const bool stops = check_ == FiniteCheck::kAll && outcome.not_finite;
  if (outcome.skipped || stops || job_.clip_norm == 0) return outcome;
  at::Tensor factor = total.add(1e-6).reciprocal().mul(job_.clip_norm).clamp_max(1.0);
  for (auto& [module, parameters] : modules_)
    for (Parameter& parameter : parameters)
      if (parameter.gradient.defined()) parameter.gradient.mul_(factor);
  return outcome;
}

StepOutcome Updater::Agree(Transport& transport, bool bad_loss) {
  if (!Waits()) return {};
  at::NoGradGuard no_grad;
  if (!std::exchange(measured_, false)) {
    LateNumbers late;
    Measure(late);
    late.Read();
    measured_ = false;
  }
  if (NeedsNorm()) return AgreeOnNorm(transport, bad_loss);
  bool not_finite = false;
  for (const auto& [module, parameters] : modules_)
    for (const Parameter& parameter : parameters)
      not_finite = not_finite || (parameter.gradient.defined() && !parameter.finite);
  StepOutcome outcome;
  // No rank sends a byte while all is well.
  for (const std::string& other : transport.AllGather(bad_loss     ? "loss"
                                                      : not_finite ? "gradient"
                                                                   : "")) {
    outcome.bad_loss |= other == "loss";
    outcome.not_finite |= other == "gradient";
  }
  return outcome;
}

void Updater::Commit(const StepOutcome& outcome) {
  if (!Waits()) return;
  at::NoGradGuard no_grad;
  std::vector<Parameter*> ready;
  for (auto& [module, parameters] : modules_)
    for (Parameter& parameter : parameters) {
      if (!parameter.gradient.defined()) continue;
      if (outcome.skipped)
        parameter.gradient.reset();
      else
        ready.push_back(&parameter);
    }
  Apply(ready);
  if (!dynamic_) return;
  if (outcome.skipped) {
    scale_.factor *= scale_job_.backoff;
    scale_.good_steps = 0;
  } else if (++scale_.good_steps >= scale_job_.interval) {  // a resumed job may have shortened it
    scale_.factor *= scale_job_.growth;
    scale_.good_steps = 0;
  }
}

std::vector<std::pair<int, size_t>> Updater::NotFinite() const {
  std::vector<std::pair<int, size_t>> found;
  for (const auto& [module, parameters] : modules_)
    for (size_t w = 0; w < parameters.size(); ++w)
      if (parameters[w].gradient.defined() && !AllFinite(parameters[w].gradient))
        found.emplace_back(module, w);
  return found;
}

at::Tensor Updater::WaitingGradient(int module, size_t weight) const {
  return modules_.at(module).at(weight).gradient;
}

int64_t Updater::Steps(int module, size_t weight) const {
  return modules_.at(module).at(weight).state.steps;
}

std::vector<std::pair<std::string, AnyTensor>> Updater::StateTensors(int module,
                                                                     size_t weight) const {
  std::vector<std::pair<std::string, AnyTensor>> tensors;
  const Parameter& parameter = modules_.at(module).at(weight);
  for (const auto& [name, tensor] : parameter.stored) tensors.emplace_back(name, tensor);
  OptimizerState state = parameter.state;  // copies of handles
  for (const auto& [name, tensor] : state.Named())
    if (tensor->defined()) tensors.emplace_back(name, *tensor);
  return tensors;
}

void Updater::SetState(int module, size_t weight, OptimizerState state) {
  Parameter& parameter = modules_.at(module).at(weight);
  const bool master = HasMaster(parameter);
  if (!master) state.master.reset();  // it would become stale
  const at::ScalarType type = parameter.weight.scalar_type();
  for (const auto& [name, tensor] : state.Named()) {
    if (!tensor->defined()) continue;
    *tensor = OnDevice(*tensor, parameter.weight.device());
    // The job that wrote it may have had other "master_weights".
    if (c10::elementSize(type) == 2) *tensor = tensor->to(master ? at::kFloat : type);
  }
  parameter.state = std::move(state);
  Store(parameter);
}

uint64_t Updater::StateBytesOnDisk() const {
  uint64_t bytes = 0;
  for (const auto& [module, parameters] : modules_)
    for (const Parameter& parameter : parameters)
      for (const auto& [name, tensor] : parameter.stored)
        bytes += static_cast<uint64_t>(tensor.numel()) * c10::elementSize(tensor.dtype());
  return bytes;
}

at::Tensor Updater::LastGradient(int module, size_t weight) const {
  return modules_.at(module).at(weight).last_gradient;
}

}  // namespace pipewright
