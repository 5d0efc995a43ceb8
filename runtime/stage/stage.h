// The stages of one rank on torch: every module an autograd island of its own, so that regrouping
// modules into stages changes no bit.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "plan/run/run_plan.h"
#include "runtime/data/microbatches.h"
#include "runtime/exec/executor.h"
#include "runtime/module/module.h"
#include "runtime/module/shapes.h"
#include "runtime/optimizer/update.h"

namespace pipewright {

class OffloadedWeights;  // runtime/stage/offload.h
struct BodyState;        // runtime/recorded/choice.h

// What a session is opened with, besides its job.
struct SessionOptions {
  std::string package;
  std::string conf;            // empty: PACKAGE/conf/mp_conf.json
  std::string weights;         // a checkpoint that replaces the package's weights; empty: none
  std::string device_map;      // instead of a conf: what lies where (plan/placement/residence.h)
  bool training = true;        // false: forward only, dropout off, running statistics used
  bool keep_gradients = false;  // of the last step, for SaveGradients
};

// What the stages of a run refer to. All of it outlives them, and stays as it is.
struct StageSettings {
  const SessionOptions& options;
  const Job& job;
  const RunPlan& run;
  const Plan& forward_plan;             // for SetTraining(false); no ranks: there is none
  const std::vector<bool>& recompute;   // by module
  ShapeCache& shapes;
  Transport& transport;
};

// A loss of one microbatch.
struct LossTerm {
  double loss = 0;
  // Where Job::accuracy asks for it or in evaluation: how many targets it is the mean of, and
  // how many of them were the likeliest class (cross_entropy; else 0).
  int64_t count = 0, correct = 0;
};
using LossTerms = std::vector<std::vector<LossTerm>>;  // by loss, then microbatch

class TorchStages : public StageBody {
 public:
  // Loads the modules of this rank's stages. Throws Error.
  explicit TorchStages(const StageSettings& settings);
  ~TorchStages() override;

  // Begins minibatch `step` of `source`, which keys random numbers. `count`: how many minibatches
  // the plan computes in a row, their microbatches counted on.
  void SetStep(Microbatches& source, int64_t step, int64_t count = 1);
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
  // After a step, on every rank: the replicas of a stage agree on their buffers, where the job asks
  // for it (runtime/stage/replica_buffers.h).
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
