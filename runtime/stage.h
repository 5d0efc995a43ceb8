// The stages of one rank on torch: every module an autograd island of its own, so that regrouping
// modules into stages changes no bit.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/conf.h"
#include "plan/job.h"
#include "plan/manifest.h"
#include "runtime/exec/executor.h"
#include "runtime/module.h"
#include "runtime/shapes.h"
#include "runtime/update.h"

namespace pipewright {

class OffloadedWeights;  // runtime/offload.h

// What the stages of a run read, and where results go.
struct StageSettings {
  const Manifest* manifest = nullptr;
  std::string package;
  const Conf* conf = nullptr;
  const StageGraph* graph = nullptr;
  int rank = 0;
  bool training = true;  // false: forward only, dropout off, running statistics used
  int microbatches = 1;
  int minibatches = 1;        // of each step
  bool exact_reduce = false;  // gradients added in the order of the microbatches
  uint64_t seed = 0;
  bool has_loss = true;
  LossJob loss;
  OptimizerJob optimizer;
  LossScaleJob loss_scale;
  bool stop_on_nan = true;
  bool accuracy = false;        // count hits while training, too
  bool keep_gradients = false;  // of the last step, for SaveGradients
  std::vector<bool> recompute;  // by module; empty: none
  // Weights that stay on disk until LOAD, [module][held]; this rank's list; and the checkpoint that
  // they come from instead of the package ("": none). Forward only.
  const std::vector<std::vector<bool>>* on_disk = nullptr;  // null: none
  const std::vector<Action>* actions = nullptr;
  std::string weights;
  // By value id, for a microbatch of a step.
  std::function<std::shared_ptr<const std::vector<TensorSpec>>(int64_t step, int microbatch)> specs;
  // Input `i` of the model (-1: the target) of a microbatch of the current step.
  std::function<at::Tensor(int i, int microbatch)> input;
  // What a microbatch's loss counts, so that a step's is the mean over all that it averages:
  // 1 where all microbatches count the same. May be empty.
  std::function<double(int microbatch)> loss_weight;
  // Called with an output of the model as soon as it is there; may be empty.
  std::function<void(int output, int microbatch, const at::Tensor& value)> output;
};

class TorchStages : public StageBody {
 public:
  // Loads the modules of this rank's stages. Throws Error.
  explicit TorchStages(StageSettings settings);
  ~TorchStages() override;

  // Of minibatches, from 0; keys random numbers.
  void SetStep(int64_t step);
  // Losses of the last step by microbatch; empty unless this rank computes the loss. Where the loss
  // has replicas, each knows its own microbatches' until the first has gathered them.
  std::vector<double>& losses();
  // Whether this rank has the losses after a step: of replicas, the first.
  bool computes_loss() const;
  int loss_value() const;  // the value that the loss is computed from; -1: no loss
  // Groups of gradients that the executor sums over ranks.
  const std::vector<SharedGroup>& groups() const;
  // By microbatch of the last minibatch, where settings.accuracy asks for it or in evaluation: how
  // many targets the loss is the mean of, and how many of them were the likeliest class
  // (cross_entropy; else 0). As losses().
  struct Hits {
    int64_t count = 0, correct = 0;
  };
  std::vector<Hits>& hits();

  // Whether the next steps train: else forward only, dropout off, running statistics used.
  void SetTraining(bool training);

  // A weight that this rank holds (or the last step's gradient of it); undefined otherwise.
  at::Tensor Weight(int module, const std::string& name) const;
  at::Tensor LastGradient(int module, const std::string& name) const;
  Updater& updater();

  Bundle Allocate(int edge, int microbatch, bool backward) override;
  int64_t MessageBytes(int edge, int microbatch, bool backward) override;
  std::vector<Bundle> Forward(int stage, int microbatch, std::vector<Bundle> inputs) override;
  std::vector<Bundle> Backward(ActionKind kind, int stage, int microbatch,
                               std::vector<Bundle> gradients) override;
  Bundle Gradient(int group, int holder) override;
  Bundle Scratch(int group) override;
  void Add(const Bundle& into, const Bundle& from) override;
  void Copy(const Bundle& into, const Bundle& from) override;
  void OnReady(std::function<void(int group)> ready) override;
  void Step(int stage) override;
  void Load(int stage) override;
  void Evict(int stage) override;

  // Null where this rank has no weights on disk.
  const OffloadedWeights* offloaded() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
