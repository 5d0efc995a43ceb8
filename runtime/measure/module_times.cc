#include "runtime/measure/module_times.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "ops/random_ops.h"
#include "runtime/exec/clock.h"
#include "runtime/measure/memory_meter.h"
#include "runtime/module/saved_buffers.h"
#include "runtime/module/trial.h"
#include "runtime/recorded/choice.h"
#include "runtime/stage/island.h"

namespace pipewright {

namespace {

// The inputs that need a gradient and the outputs that receive one.
struct Wishes {
  std::vector<bool> inputs, outputs;  // empty `outputs`: all
  bool any_input = false;

  explicit Wishes(const std::vector<bool>& wanted) : inputs(wanted) {
    any_input = std::count(wanted.begin(), wanted.end(), true) > 0;
  }
  Wishes(const Manifest& manifest, const ModuleInfo& info) {
    for (int id : info.inputs) {
      inputs.push_back(manifest.values[id].gradient && manifest.values[id].producer >= 0);
      any_input = any_input || inputs.back();
    }
    for (int id : info.outputs) {
      bool last = std::count(manifest.outputs.begin(), manifest.outputs.end(), id) > 0;
      outputs.push_back(manifest.values[id].gradient &&
                        (last || !manifest.values[id].consumers.empty()));
    }
  }
  Tensors Gradients(const Kept& kept) const {
    Tensors gradients(kept.outputs.size());
    for (size_t i = 0; i < gradients.size(); ++i)
      if ((outputs.empty() || outputs[i]) && kept.outputs[i].defined())
        gradients[i] = at::ones_like(kept.outputs[i]);
    return gradients;
  }
};

}  // namespace

Timing TimingOf(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  auto at = [&](double part) {
    double place = part * static_cast<double>(seconds.size() - 1);
    size_t below = static_cast<size_t>(place), above = std::min(below + 1, seconds.size() - 1);
    return seconds[below] +
           (place - static_cast<double>(below)) * (seconds[above] - seconds[below]);
  };
  return {at(0.5), at(0.25), at(0.75)};
}

// Runs until the choice of the module's body is settled, as in a run after some steps. It takes as
// many comparisons as a run, because other programs disturb them here too. `seconds` is a limit; 0
// means none.
static void Settle(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                   const Wishes& wishes, double seconds) {
  if (!module.recorded) return;
  module.recorded->now = true;
  module.recorded->spot_checks = false;  // all runs here use the same microbatch
  const double begin = Now();
  for (int run = 0; run < kMostRunsToChoose && !StateOf(module).settled; ++run) {
    if (seconds > 0 && Now() - begin > std::max(seconds, 1.0)) break;
    const auto& bodies = module.recorded->bodies;
    if (run > 0 && (bodies.empty() || !bodies.back()->gradients_known)) break;  // none arrive
    if (run > 1 && IsPlainlyLong(*module.recorded)) break;  // the first run may read weights
    Kept kept;
    ForwardIsland(module, inputs, wishes.inputs, &kept);
    Tensors gradients = wishes.Gradients(kept);
    BackwardIsland(module, std::move(kept), std::move(gradients));
  }
  ChooseNow(*module.recorded);  // no comparison may happen during the timing
}

static ModuleTimes Measure(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                           const Wishes& wishes, const TimingOptions& options) {
  SavedBuffers buffers(module);
  SetRandomKey({});
  if (options.backward) Settle(module, inputs, wishes, options.seconds);
  ModuleTimes times;
  std::vector<double> forward, backward, input_grad, weight_grad;
  MemoryMeter meter;
  double begin = Now();
  for (int run = 0; run < options.warmup + options.repetitions; ++run) {
    bool counts = run >= options.warmup;
    if (run > options.warmup && options.seconds > 0 && Now() - begin > options.seconds) break;
    auto record = [&](std::vector<double>& to, double start) {
      if (counts) to.push_back(Now() - start);
    };
    times.outputs.clear();
    int64_t before = meter.live();
    meter.ResetPeak();
    Kept kept;
    double start = Now();
    times.outputs =
        ForwardIsland(module, inputs, wishes.inputs, options.backward ? &kept : nullptr);
    record(forward, start);
    times.output_bytes = 0;
    for (const c10::IValue& output : times.outputs)
      if (output.isTensor()) times.output_bytes += static_cast<int64_t>(output.toTensor().nbytes());
    if (!options.backward) continue;
    times.outputs.clear();
    times.gradients.clear();
    for (const at::Tensor& output : kept.outputs) times.gradients.push_back(output.defined());
    times.activation_bytes = meter.live() - before;
    Tensors gradients = wishes.Gradients(kept);
    start = Now();
    ModuleGradients whole = BackwardIsland(module, std::move(kept), std::move(gradients));
    record(backward, start);
    times.peak_bytes = meter.peak() - before;
    whole = {};

    kept = {};
    times.outputs = ForwardIsland(module, inputs, wishes.inputs, &kept);
    gradients = wishes.Gradients(kept);
    WeightTail tail;
    if (wishes.any_input) {
      times.outputs.clear();
      start = Now();
      Tensors found = InputGradientsOf(module, std::move(kept), std::move(gradients), tail);
      record(input_grad, start);
      found.clear();
      times.kept_for_weights_bytes = meter.live() - before;
      start = Now();
      Tensors weights = WeightGradientsOf(module, std::move(tail));
      record(weight_grad, start);
    } else {
      times.kept_for_weights_bytes = times.activation_bytes;
      start = Now();
      whole = BackwardIsland(module, std::move(kept), std::move(gradients));
      record(weight_grad, start);
    }
  }
  if (options.backward) times.outputs = ForwardIsland(module, inputs, {}, nullptr);
  times.lists = options.backward && StateOf(module).lists;
  times.forward = TimingOf(std::move(forward));
  times.backward = TimingOf(std::move(backward));
  times.input_grad = TimingOf(std::move(input_grad));
  times.weight_grad = TimingOf(std::move(weight_grad));
  return times;
}

ModuleTimes TimeModule(LoadedModule& module, const Manifest& manifest,
                       const std::vector<c10::IValue>& inputs, const TimingOptions& options) {
  SetTraining(module, true);
  return Measure(module, inputs, Wishes(manifest, manifest.modules[module.index]), options);
}

ModuleTimes TimeCode(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                     const std::vector<bool>& wanted, const TimingOptions& options) {
  return Measure(module, inputs, Wishes(wanted), options);
}

std::vector<c10::IValue> ExampleInputs(const Manifest& manifest, int module,
                                       const std::vector<TensorSpec>& specs) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(module));
  std::vector<c10::IValue> inputs;
  for (int id : manifest.modules[module].inputs) {
    const TensorSpec& spec = specs[id];
    const bool made_up = at::isFloatingType(spec.type) && manifest.values[id].kind == "tensor";
    at::Tensor tensor = made_up ? MadeUp(spec, generator) : at::zeros(spec.sizes, spec.type);
    inputs.push_back(FromTensor(tensor, manifest.values[id]));
  }
  return inputs;
}

}  // namespace pipewright
