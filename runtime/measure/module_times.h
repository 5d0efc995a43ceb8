// Times modules on this machine: the source of profiles.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "formats/manifest.h"
#include "runtime/module/module.h"
#include "runtime/stage/device_clock.h"

namespace pipewright {

// Seconds over the repetitions.
struct Timing {
  double median = 0, low = 0, high = 0;  // low and high are the quartiles
};
// Returns the quartiles of `seconds`; all 0 if it is empty.
Timing TimingOf(std::vector<double> seconds);
// Returns true if the quartiles are so far apart that the median says little. Medians of up to
// 50 us never count as noisy, because the clock and cache misses move them.
bool IsNoisy(double median, double spread);

struct ModuleTimes {
  Timing forward, backward;            // F, B
  Timing input_grad, weight_grad;      // I, W; I is 0 if no input needs a gradient
  int64_t activation_bytes = 0;        // held from F to B or I, excluding inputs and weights
  int64_t kept_for_weights_bytes = 0;  // held from I to W, excluding inputs
  int64_t peak_bytes = 0;              // peak during F and B, excluding inputs
  int64_t forward_only_bytes = 0;      // peak during an F without gradients, excluding inputs
  // Inputs held from F to B and from I to W, and outputs held until B.
  std::vector<bool> held_inputs, held_inputs_for_weights, held_outputs;
  std::vector<c10::IValue> outputs;  // detached, for later modules
  std::vector<bool> gradients;       // by output: true if it requires one
  bool lists = false;                // F, I, W and B ran as recorded lists, not by autograd
};

// Returns the times of a forward as in a run without backward, after `warm_up` that do not count.
Timing TimeForwards(const LoadedModule& module, const std::vector<c10::IValue>& inputs, int warm_up,
                    int repeat, c10::Device device);

// Measures modules together, in rounds of a few microbatches: all forward, then all backward, as a
// rank runs them, with the sums of the weights' gradients. A round's time is the mean of its
// microbatches, since a step takes all of them together. The modules must outlive it; their buffers
// are restored at its end.
class ModuleTimer {
 public:
  // `device`: where the modules and their inputs are. Its own events time what it computes.
  explicit ModuleTimer(c10::Device device = at::kCPU);
  ~ModuleTimer();

  // Runs `module` on `inputs` as training does and measures its bytes, those of the device.
  // Returns its figures except the times. Throws Error like Run.
  ModuleTimes Add(LoadedModule& module, const Manifest& manifest,
                  const std::vector<c10::IValue>& inputs);
  // Does the same for code without a manifest: `wanted` selects the inputs that need a gradient,
  // and every differentiable output receives one.
  ModuleTimes Add(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                  const std::vector<bool>& wanted);

  // Runs every module forward and backward, whole and in halves. Times count only if `counts`.
  void Round(bool counts);
  size_t rounds() const { return rounds_; }  // rounds that counted
  // Fills in the times of the i-th module that was added.
  void TakeTimes(size_t i, ModuleTimes& times) const;

 private:
  struct Timed;
  // A stretch of work that a device does between two marks.
  struct Stretch {
    double* sum = nullptr;
    int begin = 0, end = 0;
  };
  template <typename F>
  void Time(double& sum, F run);
  const c10::Device device_;
  DeviceClock clock_;
  std::vector<Stretch> stretches_;  // of this round
  std::deque<std::unique_ptr<Timed>> modules_;
  size_t rounds_ = 0;
};

}  // namespace pipewright
