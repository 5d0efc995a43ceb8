// Runs the optimizer of one rank: turns gradients into new weights.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/job.h"
#include "formats/manifest.h"
#include "runtime/exec/transport.h"
#include "runtime/optimizer/optimizer.h"
#include "tensors/late_numbers.h"
#include "tensors/offloaded_tensor.h"

namespace pipewright {

class OffloadFolder;  // tensors/offload_folder.h

// The outcome of a step that the ranks agree on.
struct StepOutcome {
  double norm = -1;         // the norm of all gradients before clipping; -1: not requested
  bool skipped = false;     // gradients overflowed, so no weight is changed
  bool not_finite = false;  // some gradient is NaN or infinite
  bool bad_loss = false;    // some rank's loss is NaN or infinite
};

// Tells users how to get rid of NaN and infinity.
inline constexpr char kNotFiniteCure[] =
    "lower the learning rate, clip gradients (\"clip_norm\"), check for square roots, logarithms "
    "and divisions near zero, or let the job go on with \"nan\": \"ignore\"";

// Selects how gradients that are NaN or infinite are handled.
enum class FiniteCheck {
  kNone,  // not at all
  kEach,  // Step throws Error: for plans whose steps overlap, so that ranks cannot agree
  kAll,   // Agree tells all ranks, before any weight has changed
};

// If ranks need not agree (no clipping, no loss scaling, no FiniteCheck::kAll), each module is
// updated as soon as its gradients are complete. Otherwise all of a rank's gradients wait for
// Commit.
class Updater {
 public:
  // keep_gradients: the last step's gradients can be read afterwards.
  Updater(const Manifest& manifest, const OptimizerJob& optimizer, const LossScaleJob& loss_scale,
          bool keep_gradients, FiniteCheck check);

  // Registers a module of this rank, with `weights` in the order of ModuleInfo::held.
  void Hold(int module, const std::vector<at::Tensor>& weights);

  // Registers `weight` as the tensor that the optimizer updates.
  void Replace(int module, size_t index, const at::Tensor& weight);

  // Must be called before the gradients of step `step` (from 0), which will be sums over `parts`
  // microbatches of losses multiplied by loss_scale().
  void Begin(int64_t step, int64_t parts);
  // Takes the gradients of a module in the order of its weights, undefined if no loss depends on a
  // weight; all are undefined afterwards.
  void Step(int module, std::vector<at::Tensor>& gradients);
  // May be called after the last Step of a step and before Agree, which then finds the norms, or
  // whether gradients are finite, once `late` has been read. Otherwise Agree computes them.
  void Measure(LateNumbers& late);
  // Must be called after the last Step of a step. Collective if gradients waited: the norms are
  // combined in the order of the parameters, a shared one counted once, and every rank comes to the
  // same decision. `bad_loss`: a loss that this rank computed is not finite.
  StepOutcome Agree(Transport& transport, bool bad_loss);
  // Updates the weights as agreed.
  void Commit(const StepOutcome& outcome);
  // Returns the module and index of each weight whose waiting gradient is not finite.
  std::vector<std::pair<int, size_t>> NotFinite() const;
  at::Tensor WaitingGradient(int module, size_t weight) const;

  // Returns true if any parameter of this rank has ever received a gradient.
  bool trained() const { return trained_; }
  const LossScale& loss_scale() const { return scale_; }
  void set_loss_scale(const LossScale& scale) { scale_ = scale; }
  double learning_rate() const;  // for parameters in no group, in this step

  // For a registered module: the number of steps of a weight, and its state with the names of
  // OptimizerState. Offloaded tensors belong to the caller: the next step creates others.
  int64_t Steps(int module, size_t weight) const;
  std::vector<std::pair<std::string, AnyTensor>> StateTensors(int module, size_t weight) const;
  void SetState(int module, size_t weight, OptimizerState state);
  uint64_t StateBytesOnDisk() const;
  at::Tensor LastGradient(int module, size_t weight) const;

 private:
  struct Parameter {
    at::Tensor weight;  // shares memory with the module's weight, without autograd
    OptimizerJob job;
    OptimizerState state;
    // With states on disk between steps: the tensors that are not in `state`.
    std::vector<std::pair<std::string, OffloadedTensor>> stored;
    at::Tensor gradient;  // waits for Commit
    double norm = 0;      // of the gradient, if it was measured
    int64_t finite = 1;   // 0 if the gradient is not, if that was measured
    int64_t divisor = 1;  // still to be applied to `gradient`
    at::Tensor last_gradient;
    int place = -1;  // index among all parameters of the model
  };
  bool NeedsNorm() const {
    return job_.clip_norm > 0 || scale_job_.used || scale_.factor != 1 || dynamic_;
  }
  bool Waits() const { return NeedsNorm() || check_ == FiniteCheck::kAll; }
  bool HasMaster(const Parameter& parameter) const;
  void Apply(const std::vector<Parameter*>& parameters);
  void ApplyAlone(Parameter& parameter);
  void Fetch(Parameter& parameter);
  void Store(Parameter& parameter);
  StepOutcome AgreeOnNorm(Transport& transport, bool bad_loss);

  OptimizerJob job_;
  LossScaleJob scale_job_;
  LossScale scale_;
  bool dynamic_, keep_gradients_, trained_ = false;
  FiniteCheck check_;
  double rate_factor_ = 1;
  int64_t parts_ = 1;
  std::map<std::pair<int, size_t>, int> place_;
  std::vector<std::vector<std::vector<std::string>>> names_;  // [module][weight]: all names
  std::map<int, std::vector<Parameter>> modules_;
  bool measured_ = false;
  std::shared_ptr<OffloadFolder> folder_;  // null: states stay in memory
};

}  // namespace pipewright
