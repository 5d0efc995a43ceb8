// Runs the stages of one rank on torch. Every module is an autograd island of its own, so that
// regrouping modules into stages changes no bit.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "plan/run/run_plan.h"
#include "runtime/data/microbatches.h"
#include "runtime/exec/executor.h"
#include "runtime/module/module.h"
#include "runtime/optimizer/update.h"
#include "runtime/trial/shapes.h"

namespace pipewright {

class OffloadedWeights;  // runtime/stage/offload.h
struct BodyState;        // runtime/recorded/choose_body.h

// Selects how values travel between devices. kAuto uses NCCL between CUDA devices.
enum class DeviceLinks { kAuto, kNccl, kMpi };

// The options with which a session is opened, besides its job.
struct SessionOptions {
  std::string package;
  std::string conf;            // empty: PACKAGE/conf/mp_conf.json
  std::string weights;         // a checkpoint that replaces the package's weights; empty: none
  std::string device_map;      // replaces the conf; see plan/placement/residence.h
  bool resumes = false;        // the weights come from a checkpoint, if there is one
  bool training = true;        // false: forward only, dropout off, running statistics used
  bool keep_gradients = false;  // keeps the last step's gradients, for SaveGradients
  bool trace_memory = false;    // traces the process's memory after each action
  bool verify_files = false;    // ranks compare all of each file that they read, not samples
  std::string device;           // of every rank; empty: the conf's, or the job's
  DeviceLinks links = DeviceLinks::kAuto;
  bool share_devices = false;   // several ranks may compute on one device
  MatMul matmul = MatMul::kLibTorch;  // forward only; training takes the job's
  // Forward only: the outputs to compute, by name (empty: all). Modules and inputs that these do
  // not need are left out. None: all of the package runs.
  std::optional<std::vector<std::string>> outputs;
};

// The stages of a run refer to these, which must outlive them and not change.
struct StageSettings {
  const SessionOptions& options;
  const Job& job;
  const RunPlan& run;
  const Plan& forward_plan;             // for SetTraining(false); no ranks: there is none
  const std::vector<bool>& recompute;   // by module
  ShapeCache& shapes;
  Transport& transport;
  at::Device device = at::kCPU;  // on which this rank computes
};

// A loss of one microbatch.
struct LossTerm {
  double loss = 0;
  // With Job::accuracy or in evaluation: how many targets it is the mean of, and how many of them
  // were the likeliest class (cross_entropy and nll; else 0).
  int64_t count = 0, correct = 0;
};
using LossTerms = std::vector<std::vector<LossTerm>>;  // by loss, then microbatch

// A value that a module has computed and that is not finite.
struct BadValue {
  int64_t minibatch = 0;
  int microbatch = 0, module = 0;
  std::string name, what;  // "nan", "inf" or "-inf"
};

class TorchStages : public StageBody {
 public:
  // Loads the modules of this rank's stages. Throws Error.
  explicit TorchStages(const StageSettings& settings);
  ~TorchStages() override;

  // Begins minibatch `step` of `source`; `step` keys random numbers. `count`: how many minibatches
  // the plan computes in a row, with their microbatches numbered consecutively.
  void SetStep(Microbatches& source, int64_t step, int64_t count = 1);
  // Returns the losses of the last minibatches. Each rank has those that it computed, until they
  // are gathered on the rank that has_losses.
  LossTerms& terms();
  // Must be called after a minibatch, before `terms` is read: waits for the numbers that this
  // rank's device has computed. MeasureGradients, if called before, lets Updater::Agree find its
  // numbers among them.
  void MeasureGradients();
  void ReadNumbers();
  // Waits until the device has done what this rank has launched (DeviceClock::Await). To be called
  // before the host reads an output, for example.
  void AwaitDevice();
  // Says which transport moves the values of plans; at first that of the settings. AwaitDevice
  // makes progress there. It must outlive the steps.
  void ReceiveOver(Transport& values);
  // Returns true on the rank that gets all losses after a step: the first replica of the first
  // loss.
  bool has_losses() const;
  // Returns the stage that computes each loss; empty if there is none.
  const std::vector<int>& loss_stages() const;
  // Returns the groups of gradients that the executor sums over ranks.
  const std::vector<SharedGroup>& groups() const;
  // Says between which ranks the next steps may exchange gradients on devices; at first, none.
  void ExchangeOnDevices(const DevicePeers& peers);
  // Returns true if the code of a module of this rank may write to this weight or buffer.
  bool Writes(int module, const std::string& name) const;
  // Makes the next steps train, or else run forward only, without dropout, with running statistics.
  // What an evaluation writes to weights and buffers is undone, so that it does not change what is
  // trained.
  void SetTraining(bool training);

  // Selects the modules that the next steps recompute for backward; at first those of the settings.
  void Recompute(const std::vector<bool>& modules);

  bool Holds(int module) const;
  // Returns a weight that this rank holds (or its gradient in the last step); undefined otherwise.
  // A weight on disk is read into new memory.
  at::Tensor Weight(int module, const std::string& name) const;
  at::Tensor LastGradient(int module, const std::string& name) const;
  Updater& updater();
  // Returns true if a loss that is not finite throws at once, because Updater::Agree does not tell
  // the ranks. In a validation, such a loss is only reported.
  bool StopsAtLoss() const;
  // Checks all values that modules compute forward from now on, to find out why a loss or a
  // gradient is not finite. Slow.
  void Watch();
  // Returns the first value since Watch, by minibatch, microbatch and module, that holds nan or
  // inf; else the first with -inf, which masks may hold; else nothing.
  const std::optional<BadValue>& bad_value() const;
  // Returns the current body of each module of this rank.
  std::map<int, BodyState> Bodies() const;
  // Merges the buffers of the replicas of each stage if the job asks for it
  // (runtime/stage/replica_buffers.h). Must be called on every rank after a step.
  void MergeBuffers(Transport& transport);

  Bundle Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) override;
  int64_t MessageBytes(int edge, int microbatch, bool backward) override;
  Bundle OnHost(Bundle message) override;
  std::vector<Bundle> Forward(int stage, int microbatch, std::vector<Bundle> inputs) override;
  std::vector<Bundle> Backward(ActionKind kind, int stage, int microbatch,
                               std::vector<Bundle> gradients) override;
  Bundle Gradient(int group, int holder) override;
  Bundle Scratch(int group) override;
  void Add(const Bundle& into, const Bundle& from) override;
  void Copy(const Bundle& into, const Bundle& from) override;
  void OnReady(std::function<void(int group)> ready) override;
  bool AllReduces(int group) override;
  std::shared_ptr<void> Exchanging(bool begins) override;
  void EndExchanges() override;
  void Step(int stage) override;
  int Mark() override;
  int Reached() override;
  double Moment(int mark) override;
  // A step changes copies while the previous weights are still needed.
  void UseVersion(int stage, int version) override;
  void Load(int stage) override;
  void Evict(int stage) override;

  // Returns the text of an error of these stages. If the device has no memory left, it says what
  // this rank was predicted to need, what it has in use, and what to do.
  std::string Explained(const std::string& error) const;

  // Returns null if this rank has no weights on disk.
  const OffloadedWeights* offloaded() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
