// What one module costs on this machine, measured by itself: the source of costs for partitions
// and simulations, and of `bench`.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/manifest.h"
#include "runtime/module.h"
#include "runtime/shapes.h"

namespace pipewright {

// Seconds over the repetitions.
struct Timing {
  double median = 0, low = 0, high = 0;  // low, high: quartiles
};
// The quartiles of `seconds`; all 0 when there are none.
Timing TimingOf(std::vector<double> seconds);

struct ModuleTimes {
  Timing forward, backward;            // F, B
  Timing input_grad, weight_grad;      // I, W; I is 0 where no input wants a gradient
  int64_t activation_bytes = 0;        // held from F to B or I, beyond inputs and weights
  int64_t kept_for_weights_bytes = 0;  // held from I to W
  int64_t output_bytes = 0;            // of its outputs
  int64_t peak_bytes = 0;              // at most at any time during F and B, beyond inputs
  std::vector<c10::IValue> outputs;    // of the last run, detached: inputs of later modules
  std::vector<bool> gradients;         // which of them require one
  bool lists = false;                  // F, I, W and B ran as recorded lists, not autograd's body
};

struct TimingOptions {
  int warmup = 2;
  int repetitions = 10;  // at least 1; of each of F, I, W and B
  double seconds = 0;    // stop repeating after so long; 0: never
  bool backward = true;  // false: F alone, without gradient mode
};

// Runs `module` on `inputs` as training does. Its buffers are the same afterwards. Bytes are those
// of CPU tensors. Throws Error as Run does.
ModuleTimes TimeModule(LoadedModule& module, const Manifest& manifest,
                       const std::vector<c10::IValue>& inputs, const TimingOptions& options = {});

// The same of code that no manifest describes: `wanted` says which inputs want a gradient, and
// every output that can give one receives one.
ModuleTimes TimeCode(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                     const std::vector<bool>& wanted, const TimingOptions& options = {});

// Inputs for a module: zeros for integers, made-up numbers (runtime/trial.h) for the rest, of the
// sizes in `specs` (by value id, see InferShapes). For modules whose cost depends on data,
// feed the outputs of the modules before instead.
std::vector<c10::IValue> ExampleInputs(const Manifest& manifest, int module,
                                       const std::vector<TensorSpec>& specs);

}  // namespace pipewright
