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

// What the stages of a run read, and where results go.
struct StageSettings {
  const Manifest* manifest = nullptr;
  std::string package;
  const Conf* conf = nullptr;
  const StageGraph* graph = nullptr;
  int rank = 0;
  bool training = true;  // false: forward only, dropout off, running statistics used
  int microbatches = 1;
  uint64_t seed = 0;
  bool has_loss = true;
  LossJob loss;
  OptimizerJob optimizer;
  bool stop_on_nan = true;
  bool keep_gradients = false;    // of the last step, for SaveGradients
  std::vector<TensorSpec> specs;  // by value id, for one microbatch
  // Input `i` of the model (-1: the target) of a microbatch of the current step.
  std::function<at::Tensor(int i, int microbatch)> input;
  // Called with an output of the model as soon as it is there; may be empty.
  std::function<void(int output, int microbatch, const at::Tensor& value)> output;
};

// The groups that the executor reduces: parameters that several modules train.
std::vector<SharedGroup> SharedGroups(const Manifest& manifest, const Conf& conf);

class TorchStages : public StageBody {
 public:
  // Loads the modules of this rank's stages. Throws Error.
  explicit TorchStages(StageSettings settings);
  ~TorchStages() override;

  // Counts from 0; keys random numbers.
  void SetStep(int64_t step);
  // Losses of the last step by microbatch; empty unless this rank computes the loss.
  const std::vector<double>& losses() const;
  bool computes_loss() const;

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
  void Step(int stage) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
