// The optimizer's part of a rank: gradients in, new weights out.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/job.h"
#include "plan/manifest.h"
#include "runtime/exec/transport.h"
#include "runtime/optimizer.h"
#include "tensors/offloaded_tensor.h"

namespace pipewright {

class OffloadFolder;  // tensors/offload_folder.h

// What the ranks agreed on at the end of a step.
struct StepOutcome {
  double norm = -1;      // of all gradients, before clipping; -1: not asked for
  bool skipped = false;  // gradients overflowed: no weight was changed
};

// Without clipping and loss scaling each module is updated as soon as its gradients are there. With
// them, all of a rank's gradients wait for Finish.
class Updater {
 public:
  // keep_gradients: those of the last step can be asked for.
  Updater(const Manifest& manifest, const OptimizerJob& optimizer, const LossScaleJob& loss_scale,
          bool keep_gradients);

  // A module of this rank; `weights` in the order of ModuleInfo::held.
  void Hold(int module, const std::vector<at::Tensor>& weights);

  // From now on `weight` is what a step changes.
  void Replace(int module, size_t index, const at::Tensor& weight);

  // Before the gradients of step `step` (from 0), which will be sums over `parts` microbatches, of
  // losses multiplied by loss_scale().
  void Begin(int64_t step, int64_t parts);
  // Gradients of a module in the order of its weights, undefined where no loss reaches; all are
  // undefined afterwards.
  void Step(int module, std::vector<at::Tensor>& gradients);
  // After the last Step of a step. Collective where gradients waited: norms are brought together
  // in the order of the parameters, a shared one counted once, and every rank decides the same.
  StepOutcome Finish(Transport& transport);

  // Whether any parameter of this rank has ever been given a gradient.
  bool trained() const { return trained_; }
  const LossScale& loss_scale() const { return scale_; }
  void set_loss_scale(const LossScale& scale) { scale_ = scale; }
  double learning_rate() const;  // of parameters in no group, this step

  // Of a module that is held: how many steps a weight has made, and what is kept of them, by the
  // names of OptimizerState. Offloaded tensors are the caller's: the next step makes others.
  int64_t Steps(int module, size_t weight) const;
  std::vector<std::pair<std::string, AnyTensor>> StateTensors(int module, size_t weight) const;
  void SetState(int module, size_t weight, OptimizerState state);
  uint64_t StateBytesOnDisk() const;
  at::Tensor LastGradient(int module, size_t weight) const;

 private:
  struct Parameter {
    at::Tensor weight;  // shares the memory of the module's, without autograd
    OptimizerJob job;
    OptimizerState state;
    // Where states are on disk between steps: the tensors that `state` lacks.
    std::vector<std::pair<std::string, OffloadedTensor>> stored;
    at::Tensor gradient;  // waiting for Finish
    at::Tensor last_gradient;
    int place = -1;  // among all parameters of the model
  };
  bool Waits() const { return job_.clip_norm > 0 || scale_.factor != 1 || dynamic_; }
  // Of the gradient divided by `divisor`.
  void Apply(Parameter& parameter, int64_t divisor);
  void Fetch(Parameter& parameter);
  void Store(Parameter& parameter);
  StepOutcome Agree(Transport& transport);

  OptimizerJob job_;
  LossScaleJob scale_job_;
  LossScale scale_;
  bool dynamic_, keep_gradients_, trained_ = false;
  double rate_factor_ = 1;
  int64_t parts_ = 1;
  std::map<std::pair<int, size_t>, int> place_;
  std::vector<std::vector<std::vector<std::string>>> names_;  // [module][weight]: all its names
  std::map<int, std::vector<Parameter>> modules_;
  std::shared_ptr<OffloadFolder> folder_;  // null: states stay in memory
};

}  // namespace pipewright
