#include "runtime/measure/module_times.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ops/random_ops.h"
#include "runtime/exec/clock.h"
#include "runtime/measure/memory_meter.h"
#include "runtime/module/saved_buffers.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/stage/island.h"

namespace pipewright {

// The inputs that need a gradient and the outputs that receive one.
struct ModuleWishes {
  std::vector<bool> inputs, outputs;  // empty `outputs`: all
  bool any_input = false;

  explicit ModuleWishes(const std::vector<bool>& wanted) : inputs(wanted) {
    any_input = std::count(wanted.begin(), wanted.end(), true) > 0;
  }
  ModuleWishes(const Manifest& manifest, const ModuleInfo& info) {
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

bool IsNoisy(double median, double spread) {
  constexpr double kMost = 0.1, kShort = 50e-6;  // share of the median, seconds
  return median > kShort && spread > kMost * median;
}

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
// many comparisons as a run, because other programs disturb them here too.
static void Settle(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                   const ModuleWishes& wishes) {
  if (!module.recorded) return;
  module.recorded->now = true;
  module.recorded->spot_checks = false;  // all runs here use the same microbatch
  for (int run = 0; run < kMostRunsToChoose && !StateOf(module).settled; ++run) {
    const auto& bodies = module.recorded->bodies;
    if (run > 0 && (bodies.empty() || !bodies.back()->gradients_known)) break;  // no gradient comes
    if (run > 1 && IsPlainlyLong(*module.recorded)) break;  // the first run may read weights
    Kept kept;
    ForwardIsland(module, inputs, wishes.inputs, &kept);
    Tensors gradients = wishes.Gradients(kept);
    BackwardIsland(module, std::move(kept), std::move(gradients));
  }
  ChooseNow(*module.recorded);  // no comparison may happen during the timing
}

namespace {

// Returns copies that nothing else holds, like values from a message or the previous module.
std::vector<c10::IValue> Copies(const std::vector<c10::IValue>& values) {
  std::vector<c10::IValue> copies;
  for (const c10::IValue& value : values)
    copies.push_back(value.isTensor() && value.toTensor().defined()
                         ? c10::IValue(value.toTensor().clone())
                         : value);
  return copies;
}

// Microbatches of a round that are in flight at once, each with its own memory, so that a backward
// does not find its forward's data still in the cache.
constexpr int kUnderWay = 2;

struct ModuleSeconds {
  double forward = 0, backward = 0, input_grad = 0, weight_grad = 0;
};

}  // namespace

struct ModuleTimer::Timed {
  struct Microbatch {
    std::vector<c10::IValue> inputs;
    Kept kept;
    WeightTail tail;
  };
  const LoadedModule& module;
  const ModuleWishes wishes;
  SavedBuffers buffers;
  std::vector<Microbatch> microbatches;
  Tensors sums;  // the weights' gradients: each backward adds to them, as in a step
  std::vector<double> forward, backward, input_grad, weight_grad;

  Timed(const LoadedModule& m, const std::vector<c10::IValue>& given, const ModuleWishes& w)
      : module(m), wishes(w), buffers(m), microbatches(kUnderWay), sums(m.weights.size()) {
    for (Microbatch& one : microbatches) one.inputs = Copies(given);
  }

  void Forward(int i) {
    Microbatch& one = microbatches[static_cast<size_t>(i)];
    ForwardIsland(module, one.inputs, wishes.inputs, &one.kept);
  }
  Tensors Gradients(int i) const {
    return wishes.Gradients(microbatches[static_cast<size_t>(i)].kept);
  }
  void Backward(int i, Tensors gradients) {
    Microbatch& one = microbatches[static_cast<size_t>(i)];
    Sum(BackwardIsland(module, std::exchange(one.kept, {}), std::move(gradients)).weights);
  }
  void InputGradient(int i, Tensors gradients) {
    Microbatch& one = microbatches[static_cast<size_t>(i)];
    InputGradientsOf(module, std::exchange(one.kept, {}), std::move(gradients), one.tail);
  }
  void WeightGradient(int i) {
    Microbatch& one = microbatches[static_cast<size_t>(i)];
    Sum(WeightGradientsOf(module, std::exchange(one.tail, {})));
  }

 private:
  void Sum(Tensors found) {
    for (size_t w = 0; w < found.size(); ++w)
      if (const at::Tensor gradient = std::move(found[w]); gradient.defined())
        Accumulate(sums[w], gradient, gradient.scalar_type());
  }
};

namespace {

// Tracks the memory of values, without keeping it alive.
class Places {
 public:
  explicit Places(const std::vector<c10::IValue>& values) {
    for (const c10::IValue& value : values) {
      if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage())
        places_.emplace_back();
      else
        places_.emplace_back(value.toTensor().storage().getWeakStorageImpl());
    }
  }
  std::vector<bool> Held() const {
    std::vector<bool> held;
    for (const auto& place : places_) held.push_back(place && !place->expired());
    return held;
  }
  int64_t HeldBytes() const {
    int64_t bytes = 0;
    for (const auto& place : places_)
      if (place && !place->expired()) bytes += static_cast<int64_t>(place->lock()->nbytes());
    return bytes;
  }

 private:
  std::vector<std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>>> places_;
};

// Measures the bytes of one microbatch, whole or in halves.
void MeasureBytes(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                  const ModuleWishes& wishes, bool halves, c10::Device device, ModuleTimes& times) {
  MemoryMeter meter;
  meter.Show(device);
  std::vector<c10::IValue> copies = Copies(inputs);
  const Places given(copies);
  const int64_t before = meter.live() - given.HeldBytes();
  meter.ResetPeak();
  Kept kept;
  std::vector<c10::IValue> outputs = ForwardIsland(module, std::move(copies), wishes.inputs, &kept);
  copies.clear();
  const Places made(outputs);
  outputs.clear();
  times.held_inputs = given.Held();
  times.held_outputs = made.Held();
  times.activation_bytes = meter.live() - before - given.HeldBytes();
  times.gradients.clear();
  for (const at::Tensor& output : kept.outputs) times.gradients.push_back(output.defined());
  Tensors gradients = wishes.Gradients(kept);
  if (!halves) {
    BackwardIsland(module, std::move(kept), std::move(gradients));
    int64_t all = 0;
    for (const c10::IValue& input : inputs)
      if (input.isTensor() && input.toTensor().defined())
        all += static_cast<int64_t>(input.toTensor().nbytes());
    times.peak_bytes = meter.peak() - before - all;
    return;
  }
  WeightTail tail;
  if (wishes.any_input) InputGradientsOf(module, std::move(kept), std::move(gradients), tail);
  times.held_inputs_for_weights = given.Held();
  if (wishes.any_input) {
    times.kept_for_weights_bytes = meter.live() - before - given.HeldBytes();
    WeightGradientsOf(module, std::move(tail));
  } else {
    times.kept_for_weights_bytes = times.activation_bytes;
  }
}

}  // namespace

Timing TimeForwards(const LoadedModule& module, const std::vector<c10::IValue>& inputs, int warm_up,
                    int repeat, c10::Device device) {
  DeviceClock clock(device);
  clock.Begin();
  std::vector<double> seconds;
  std::vector<std::pair<int, int>> marks;
  for (int i = -warm_up; i < repeat; ++i) {
    const double start = Now();
    const int begin = clock.Mark();
    ForwardIsland(module, inputs, {}, nullptr);
    const int end = clock.Mark();
    if (i < 0) continue;
    if (begin < 0)
      seconds.push_back(Now() - start);
    else
      marks.emplace_back(begin, end);
  }
  for (const auto& [begin, end] : marks) seconds.push_back(clock.Moment(end) - clock.Moment(begin));
  return TimingOf(std::move(seconds));
}

ModuleTimer::ModuleTimer(c10::Device device) : device_(device), clock_(device) {}
ModuleTimer::~ModuleTimer() = default;

static ModuleTimes Measure(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                           const ModuleWishes& wishes, c10::Device device) {
  SetRandomKey({});
  Settle(module, inputs, wishes);
  ModuleTimes times;
  MeasureBytes(module, inputs, wishes, false, device, times);
  MeasureBytes(module, inputs, wishes, true, device, times);
  {
    MemoryMeter meter;
    meter.Show(device);
    times.outputs = ForwardIsland(module, inputs, {}, nullptr);
    times.forward_only_bytes = meter.peak();
  }
  times.lists = StateOf(module).lists;
  return times;
}

ModuleTimes ModuleTimer::Add(LoadedModule& module, const Manifest& manifest,
                             const std::vector<c10::IValue>& inputs) {
  SetTraining(module, true);
  const ModuleWishes wishes(manifest, manifest.modules[module.index]);
  modules_.push_back(std::make_unique<Timed>(module, inputs, wishes));
  return Measure(module, inputs, wishes, device_);
}

ModuleTimes ModuleTimer::Add(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                             const std::vector<bool>& wanted) {
  const ModuleWishes wishes(wanted);
  modules_.push_back(std::make_unique<Timed>(module, inputs, wishes));
  return Measure(module, inputs, wishes, device_);
}

// Adds the seconds of `run` to `sum`: now, or at the end of the round if a device is to compute.
template <typename F>
void ModuleTimer::Time(double& sum, F run) {
  const double start = Now();
  const int begin = clock_.Mark();
  run();
  if (begin < 0)
    sum += Now() - start;
  else
    stretches_.push_back({&sum, begin, clock_.Mark()});
}

void ModuleTimer::Round(bool counts) {
  std::vector<ModuleSeconds> sums(modules_.size());  // sums over the round's microbatches
  double other = 0;
  clock_.Begin();
  stretches_.clear();
  for (bool halves : {false, true}) {
    for (int i = 0; i < kUnderWay; ++i)
      for (size_t m = 0; m < modules_.size(); ++m)
        Time(halves ? other : sums[m].forward, [&] { modules_[m]->Forward(i); });
    for (int i = 0; i < kUnderWay; ++i)
      for (size_t m = modules_.size(); m-- > 0;) {
        Timed& timed = *modules_[m];
        const bool inputs = halves && timed.wishes.any_input;
        Tensors gradients = timed.Gradients(i);
        if (inputs) {
          Time(sums[m].input_grad, [&] { timed.InputGradient(i, std::move(gradients)); });
          Time(sums[m].weight_grad, [&] { timed.WeightGradient(i); });
        } else {
          Time(halves ? sums[m].weight_grad : sums[m].backward,
               [&] { timed.Backward(i, std::move(gradients)); });
        }
      }
  }
  for (const Stretch& one : stretches_)
    *one.sum += clock_.Moment(one.end) - clock_.Moment(one.begin);
  if (!counts) return;
  ++rounds_;
  for (size_t m = 0; m < modules_.size(); ++m) {
    Timed& timed = *modules_[m];
    timed.forward.push_back(sums[m].forward / kUnderWay);
    timed.backward.push_back(sums[m].backward / kUnderWay);
    if (timed.wishes.any_input) timed.input_grad.push_back(sums[m].input_grad / kUnderWay);
    timed.weight_grad.push_back(sums[m].weight_grad / kUnderWay);
  }
}

void ModuleTimer::TakeTimes(size_t i, ModuleTimes& times) const {
  const Timed& timed = *modules_[i];
  times.forward = TimingOf(timed.forward);
  times.backward = TimingOf(timed.backward);
  times.input_grad = TimingOf(timed.input_grad);
  times.weight_grad = TimingOf(timed.weight_grad);
}

}  // namespace pipewright
