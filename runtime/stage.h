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
struct BodyState;        // runtime/recorded/choice.h

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
  std::vector<LossJob> losses;
  OptimizerJob optimizer;
  LossScaleJob loss_scale;
  bool stop_on_nan = true;
  bool accuracy = false;        // count hits while training, too
  bool keep_gradients = false;  // of the last step, for SaveGradients
  bool merge_buffers = false;   // of replicas, see MergeBuffers
  std::vector<bool> recompute;  // by module; empty: none
  BodyChoice body = BodyChoice::kAutograd;
  // Weights that stay on disk until LOAD, [module][held]; this rank's lists (of a session that
  // trains and validates two: the second is for SetTraining(false)); and the checkpoint that they
  // come from instead of the package ("": none).
  const std::vector<std::vector<bool>>* on_disk = nullptr;  // null: none
  std::vector<std::vector<Action>> lists = {};
  std::string weights;
  // By value id, for a microbatch of a step.
  std::function<std::shared_ptr<const std::vector<TensorSpec>>(int64_t step, int microbatch)> specs;
  // Input `i` of the model (-1 - k: the target of loss k) of a microbatch of a minibatch, both from
  // 0.
  std::function<at::Tensor(int i, int64_t minibatch, int microbatch)> input;
  // What a loss of a microbatch counts, so that a step's is the mean over all that it averages:
  // 1 where all microbatches count the same. May be empty.
  std::function<double(int loss, int64_t minibatch, int microbatch)> loss_weight;
  // Of plans that name versions of the weights: how many older than the newest a forward may ask
  // for, besides those that microbatches under way have met.
  int older_versions = 0;
  // Of such plans: called when the stage that computes the loss has stepped, with how often since
  // SetStep. May be empty.
  std::function<void(int64_t steps)> stepped;
  // What to call the target of a loss in messages. May be empty.
  std::function<std::string(int loss)> target_name;
  // Where received values and gradients go (Transport::Memory). May be empty.
  std::function<std::shared_ptr<void>(size_t bytes)> memory;
  // Called with an output of the model as soon as it is there; may be empty.
  std::function<void(int output, int microbatch, const at::Tensor& value)> output;
};

// A loss of one microbatch.
struct LossTerm {
  double loss = 0;
  // Where settings.accuracy asks for it or in evaluation: how many targets it is the mean of, and
  // how many of them were the likeliest class (cross_entropy; else 0).
  int64_t count = 0, correct = 0;
};
using LossTerms = std::vector<std::vector<LossTerm>>;  // by loss, then microbatch

class TorchStages : public StageBody {
 public:
  // Loads the modules of this rank's stages. Throws Error.
  explicit TorchStages(StageSettings settings);
  ~TorchStages() override;

  // Of minibatches, from 0; keys random numbers. `count`: how many minibatches the plan computes in
  // a row, their microbatches counted on.
  void SetStep(int64_t step, int64_t count = 1);
  // Of the last minibatches. Each rank knows those that it has computed, until they have been
  // gathered on the one that has_losses.
  LossTerms& terms();
  // Whether this rank gets all losses after a step: of the first loss's replicas, the first.
  bool has_losses() const;
  // The stages that compute a loss, by loss; empty: there is none.
  const std::vector<int>& loss_stages() const;
  // Groups of gradients that the executor sums over ranks.
  const std::vector<SharedGroup>& groups() const;
  // Whether the next steps train: else forward only, dropout off, running statistics used.
  void SetTraining(bool training);

  bool Holds(int module) const;
  // A weight that this rank holds (or the last step's gradient of it); undefined otherwise. What is
  // on disk is read, into memory of the caller's.
  at::Tensor Weight(int module, const std::string& name) const;
  at::Tensor LastGradient(int module, const std::string& name) const;
  Updater& updater();
  // Which body each module of this rank has by now.
  std::map<int, BodyState> Bodies() const;
  // After a step, on every rank: the replicas of a stage agree on their buffers, where the settings
  // ask for it (runtime/replica_buffers.h).
  void MergeBuffers(Transport& transport);

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
  // What a step changes are copies while the weights before it are still asked for.
  void UseVersion(int stage, int version) override;
  void Load(int stage) override;
  void Evict(int stage) override;

  // Null where this rank has no weights on disk.
  const OffloadedWeights* offloaded() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
