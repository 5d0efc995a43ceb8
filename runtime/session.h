// Prepares a package, a conf and a job to run on this rank, and runs them step by step.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/job.h"
#include "formats/weights/run_checkpoint.h"
#include "plan/run/run_plan.h"
#include "runtime/data/microbatches.h"
#include "runtime/evaluation.h"
#include "runtime/exec/executor.h"
#include "runtime/optimizer/loss.h"
#include "runtime/rank_device.h"
#include "runtime/stage/stage.h"

namespace pipewright {

class NcclTransport;  // runtime/links/nccl_transport.h

// Names and values of other settings that must be the same on every rank.
using AgreedFields = std::vector<std::pair<std::string, std::string>>;

// Every rank must call these in order: Open, optionally Check, Load, optionally Restore, Start;
// then Step, Steps and Evaluate any number of times, and Save. All are collective. Step, Steps and
// Evaluate may throw on this rank alone, so the other ranks must be aborted; the others throw the
// same Error on every rank.
class Session {
 public:
  explicit Session(Transport& transport);
  ~Session();
  Session(const Session&) = delete;  // others refer to its members

  // Reads the package and makes the plan of the run. `job` must be filled in before, and is not
  // changed afterwards except for the outputs that its losses name.
  void Open(const SessionOptions& options);
  // Checks everything that can be checked without weights, with the sizes of each source. The first
  // source is that of the steps. Stores warnings in run.warnings on rank 0.
  void Check(const std::vector<Microbatches*>& sources);
  // Calls Check if it was not called, shows the warnings, checks that all ranks read the same, and
  // loads this rank's stages.
  void Load(const std::vector<Microbatches*>& sources, const AgreedFields& agreed = {});
  // Resumes from a checkpoint: see Resume in runtime/resume.h.
  RunCheckpoint Restore(const std::string& from, bool apart = false);
  void Start();

  // Runs one step (from 0) of this rank: a minibatch, or those that the job accumulates. If the
  // loss's stage has replicas, the first of them waits for the losses of the others.
  void Step(Microbatches& source, int64_t step);
  // Runs the steps `step` to `step` + `count` - 1 of an asynchronous schedule (IsAsynchronous) in a
  // row; microbatches are numbered consecutively through all of them.
  void Steps(Microbatches& source, int64_t step, int64_t count);
  // Runs one sweep forward only and adds its losses, on the rank that has them. A session that
  // trains has a plan for it only if its job validates.
  void Evaluate(Microbatches& source, int64_t minibatch, Evaluation& evaluation);

  // Runs the next steps by another plan of the same stages, through `body`, which forwards to
  // `stages`. Both must outlive those steps.
  void StepBy(const Plan& plan, StageBody& body);
  // Runs one sweep by a forward-only plan, through `body`, which forwards to `stages`.
  void EvaluateBy(const Plan& plan, StageBody& body, Microbatches& source, int64_t minibatch);

  // Writes the weights, or the last step's gradients (SessionOptions::keep_gradients), as
  // SaveWeights of runtime/weights.h. Throws the same Error on every rank.
  void Save(const std::string& path);
  void SaveGradients(const std::string& path);

  // Returns which modules are recomputed for their backward.
  const std::vector<bool>& recompute() const { return recompute_; }

  // From Load on: returns the specs of a microbatch's values by id, from those of its inputs.
  std::shared_ptr<const std::vector<TensorSpec>> Shapes(const std::vector<TensorSpec>& inputs);

  // Returns true if some rank does not compute on the CPU.
  bool OnDevices() const;

  // Returns the events of the last step's last minibatch.
  const std::vector<TraceEvent>& trace() const { return executor_->trace(); }

  Transport& transport;
  Job job;
  SessionOptions options;               // from Open on
  RunPlan run;                          // from Open on
  std::vector<std::string> devices;     // from Open on: by rank, "cpu" or "cuda:0", for example
  std::string edited;                   // from Open on: EditedCode of the package
  std::string edited_places;            // and EditedPlaces
  std::vector<Found> read;              // from Load on: data and code, which checkpoints name
  std::unique_ptr<TorchStages> stages;  // from Load on

  // These are of the last step, which may be several minibatches.
  std::vector<double> losses;  // weighted sums by microbatch; empty unless stages->has_losses()
  LossTerms terms;             // the terms of these sums
  double loss_scale = 1;       // the factor that its losses were multiplied by
  double busy = 0;             // seconds in which this rank computed
  StepOutcome outcome;
  bool told_not_finite = false;  // see ThrowNotFinite

  // Returns the transport of the values of a plan, from Start on.
  Transport& Values();
  // Waits for this rank's device, and lets the watchdog know. Throws if a transfer has failed,
  // because its values must not be used.
  void AwaitDevice();

 private:
  void Run(Executor& executor, int64_t step, bool last);
  void CheckSources(const std::vector<Microbatches*>& sources);
  void FindWarnings(const std::vector<TensorSpec>& inputs);
  void ShowWarnings() const;
  std::vector<Found> Reads(const std::vector<Microbatches*>& sources) const;
  void LoadFirstWeights();
  void MakeExecutor();
  void AddBusy();
  void CheckTrained(int64_t step);
  void Watch(Microbatches& source, int64_t step);

  Plan forward_plan_;  // for a session that trains and validates
  std::vector<bool> recompute_;
  std::unique_ptr<ShapeCache> shapes_;
  std::vector<VisibleDevices> visible_;   // by rank
  std::unique_ptr<NcclTransport> links_;  // NCCL; null: values travel like everything else
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> evaluator_;  // runs forward_plan_
  int64_t done_ = 0;     // optimizer steps, including those before a resume
  bool warm_ = false;    // a whole step has been run
  bool warm_evaluation_ = false;  // evaluator_ has run
  bool trains_ = false;  // some rank is known to have received a gradient
};

// Returns text such as "stage 0: modules 0-1" for a rank.
std::string Describe(const Session& session, int rank);
// Returns text such as "modules 0-2: lists of operations; module 3: autograd (control flow)"; "" if
// no body, or autograd, was asked for. Collective.
std::string DescribeBodies(const Session& session);

}  // namespace pipewright
