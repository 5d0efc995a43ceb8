// Times a single module on this machine: the source of costs for partitions and simulations, and
// for `bench`.
#pragma once
#include <cstdint>
#include <vector>

#include "formats/manifest.h"
#include "runtime/module/module.h"
#include "runtime/module/shapes.h"

namespace pipewright {

// Seconds over the repetitions.
struct Timing {
  double median = 0, low = 0, high = 0;  // low and high are the quartiles
};
// Returns the quartiles of `seconds`; all 0 if it is empty.
Timing TimingOf(std::vector<double> seconds);

struct ModuleTimes {
  Timing forward, backward;            // F, B
  Timing input_grad, weight_grad;      // I, W; I is 0 if no input needs a gradient
  int64_t activation_bytes = 0;        // held from F to B or I, excluding inputs and weights
  int64_t kept_for_weights_bytes = 0;  // held from I to W
  int64_t output_bytes = 0;            // of the outputs
  int64_t peak_bytes = 0;              // peak during F and B, excluding inputs
  std::vector<c10::IValue> outputs;    // outputs of the last run, detached, for later modules
  std::vector<bool> gradients;         // which outputs require one
  bool lists = false;                  // F, I, W and B ran as recorded lists, not by autograd
};

struct TimingOptions {
  int warmup = 2;
  int repetitions = 10;  // at least 1; for each of F, I, W and B
  double seconds = 0;    // stop repeating after this time; 0: no limit
  bool backward = true;  // false: F only, without gradient mode
};

// Runs `module` on `inputs` as training does and restores its buffers afterwards. Bytes are those
// of CPU tensors. Throws Error like Run.
ModuleTimes TimeModule(LoadedModule& module, const Manifest& manifest,
                       const std::vector<c10::IValue>& inputs, const TimingOptions& options = {});

// Does the same for code without a manifest: `wanted` selects the inputs that need a gradient, and
// every differentiable output receives one.
ModuleTimes TimeCode(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                     const std::vector<bool>& wanted, const TimingOptions& options = {});

// Returns inputs for a module, with the sizes in `specs` (by value id, see InferShapes): zeros for
// integers, generated numbers (runtime/module/trial.h) for the rest. If a module's cost depends on its
// data, pass the outputs of the preceding modules instead.
std::vector<c10::IValue> ExampleInputs(const Manifest& manifest, int module,
                                       const std::vector<TensorSpec>& specs);

}  // namespace pipewright
