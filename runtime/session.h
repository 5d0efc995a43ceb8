// A package, a conf and a job made ready to run on this rank, and run step by step.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/job.h"
#include "formats/weights/run_checkpoint.h"
#include "plan/run/run_plan.h"
#include "runtime/data/microbatches.h"
#include "runtime/exec/executor.h"
#include "runtime/optimizer/loss.h"
#include "runtime/stage/stage.h"

namespace pipewright {

// Losses over all targets that count, of one or more sweeps.
struct Evaluation {
  struct Sum {
    double weight = 1;
    double loss = 0;      // sum
    int64_t targets = 0;  // that count
    int64_t correct = 0;  // of cross_entropy
    double mean() const { return targets ? loss / static_cast<double>(targets) : 0; }
  };
  std::vector<Sum> losses;  // those of the job
  double mean() const;      // the weighted sum of the means
  bool known() const { return !losses.empty() && losses[0].targets > 0; }
};

// The weighted sum of a microbatch's losses.
double TotalLoss(const Job& job, const LossTerms& terms, size_t microbatch);

// Names and values of what else must be the same on every rank.
using AgreedFields = std::vector<std::pair<std::string, std::string>>;

// Every rank calls the steps of its session in the order in which they stand here: Open, perhaps
// Check, Load, perhaps Restore, Start; then Step, Steps and Evaluate as often as it likes, and Save.
// All are collective. What the first five throw is the same Error on every rank; what the others
// throw is this rank's alone: the others must be aborted.
class Session {
 public:
  explicit Session(Transport& transport) : transport(transport) {}
  Session(const Session&) = delete;  // addresses inside are taken

  // Reads the package and makes the plan of the run. `job` is filled in by then; it stays as it is
  // from then on, but for the outputs that its losses name.
  void Open(const SessionOptions& options);
  // Checks the sizes that each source brings, that of the steps first: everything that can be known
  // without weights. Rank 0 has the warnings in run.warnings then.
  void Check(const std::vector<Microbatches*>& sources);
  // Calls Check if nobody has, shows the warnings, checks that all ranks read the same, and loads
  // this rank's stages.
  void Load(const std::vector<Microbatches*>& sources, const AgreedFields& agreed = {});
  // Goes on from a checkpoint: see Resume in runtime/resume.h.
  RunCheckpoint Restore(const std::string& from, bool apart = false);
  void Start();

  // Runs one step (from 0) of this rank: a minibatch, or those that the job accumulates. Where the
  // loss's stage has replicas, the first of them waits for the losses of the others.
  void Step(Microbatches& source, int64_t step);
  // Runs the steps `step` to `step` + `count` - 1 of an asynchronous schedule (IsAsynchronous) in a
  // row; microbatches are counted on through all of them.
  void Steps(Microbatches& source, int64_t step, int64_t count);
  // Runs one sweep forward only and adds its losses, on the rank that has them. A session that
  // trains has a plan for it if its job validates.
  void Evaluate(Microbatches& source, int64_t minibatch, Evaluation& evaluation);

  // Runs the next steps by another plan of the same stages, through `body`, which hands on to
  // `stages`. Both outlive those steps.
  void StepBy(const Plan& plan, StageBody& body);
  // Runs one sweep by a forward-only plan, through `body`, which hands on to `stages`.
  void EvaluateBy(const Plan& plan, StageBody& body, Microbatches& source, int64_t minibatch);

  // Writes the weights, or the last step's gradients (SessionOptions::keep_gradients), as
  // SaveWeights of runtime/weights.h. Throws the same Error on every rank.
  void Save(const std::string& path);
  void SaveGradients(const std::string& path);

  // Returns true on every rank if losses or gradients of the last step end the run, so that Step
  // has thrown before it changed a weight.
  bool MustStop() const;

  // Which modules are computed again for their backward.
  const std::vector<bool>& recompute() const { return recompute_; }

  // The events of the last step's last minibatch.
  const std::vector<TraceEvent>& trace() const { return executor_->trace(); }

  Transport& transport;
  Job job;
  SessionOptions options;               // from Open on
  RunPlan run;                          // from Open on
  std::string edited;                   // from Open on: EditedCode of the package
  std::string edited_places;            // and EditedPlaces
  std::vector<Found> read;              // from Load on: data and code, which checkpoints name
  std::unique_ptr<TorchStages> stages;  // from Load on

  // These are of the last step, which may be several minibatches.
  std::vector<double> losses;  // weighted sums by microbatch; empty unless stages->has_losses()
  LossTerms terms;             // what they are the sums of
  double loss_scale = 1;       // that its losses were multiplied by
  double busy = 0;             // seconds in which this rank computed
  StepOutcome outcome;

 private:
  void CheckSources(const std::vector<Microbatches*>& sources);
  void FindWarnings(const std::vector<TensorSpec>& inputs);
  void ShowWarnings() const;
  std::vector<Found> Reads(const std::vector<Microbatches*>& sources) const;
  void LoadFirstWeights();
  void MakeExecutor();
  void AddBusy();
  void CheckTrained(int64_t step);
  void Watch(Microbatches& source, int64_t step);

  Plan forward_plan_;  // of a session that trains and validates
  std::vector<bool> recompute_;
  std::unique_ptr<ShapeCache> shapes_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> evaluator_;  // runs forward_plan_
  int64_t done_ = 0;     // optimizer steps, those before a resume too
  bool trains_ = false;  // known: some rank has got a gradient
};

// "stage 0: modules 0-1" of one rank, for people.
std::string Describe(const Session& session, int rank);
// "modules 0-2: lists of operations; module 3: autograd (control flow)"; "" where
// nobody asked for a body, or for autograd. Collective.
std::string DescribeBodies(const Session& session);

}  // namespace pipewright
