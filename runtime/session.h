// A package, a conf and a job made ready to run on this rank.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/run_plan.h"
#include "runtime/data.h"
#include "runtime/exec/executor.h"
#include "runtime/loss.h"
#include "runtime/stage.h"

namespace pipewright {

// The sizes of a microbatch that a source of data brings: of the model's inputs, and of the targets
// by loss, with what to call them in messages. A target that no loss asks for is not `known`.
struct Fed {
  std::vector<TensorSpec> inputs, targets;
  std::vector<std::string> names;
};

struct SessionOptions {
  std::string package;
  std::string conf;      // empty: PACKAGE/conf/mp_conf.json
  std::string weights;   // a safetensors file that replaces the package's weights; empty: none
  bool training = true;  // false: forward only
  bool has_loss = true;
  bool keep_gradients = false;
  std::string agreed = "";      // what else must be the same on every rank
  std::string device_map = "";  // instead of a conf: what lies where (plan/placement/residence.h)
  // As in StageSettings.
  std::function<double(int loss, int64_t minibatch, int microbatch)> loss_weight = nullptr;
  std::function<void(int64_t steps)> stepped = nullptr;
  std::function<std::string(int loss)> target_name = nullptr;
  // Called when the run's plan is known, before any sizes are asked for. Collective.
  std::function<void(struct Session&)> read_data = nullptr;
  // What the data brings, so that a target that fits no output is found before anything starts; an
  // entry for each source. Called after read_data on all ranks.
  std::function<std::vector<Fed>(struct Session&)> fed = nullptr;
  // Called with the stages loaded, on all ranks; changes their weights and returns the step that
  // is to be the first. Empty: step 0.
  std::function<int64_t(struct Session&)> restore = nullptr;
};

// Addresses inside are taken: stays where it was made.
struct Session {
  Session() = default;
  Session(const Session&) = delete;

  Job job;
  bool training = true;
  RunPlan run;
  std::unique_ptr<TorchStages> stages;
  std::unique_ptr<Executor> executor;
  Transport* transport = nullptr;
  Plan forward_plan;                    // of a session that trains and validates
  std::unique_ptr<Executor> evaluator;  // runs it
  bool evaluating = false;              // inputs are asked for by it

  // Of the last step, which may be several minibatches.
  std::vector<double> losses;  // weighted sums by microbatch; empty unless stages->has_losses()
  LossTerms terms;             // what they are the sums of
  double loss_scale = 1;       // that its losses were multiplied by
  bool trains = false;         // known: some rank has got a gradient
  double busy = 0;             // seconds in which this rank computed
  StepOutcome outcome;
};

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

// Reads, agrees with the other ranks that all read the same, loads this rank's stages. `specs`
// gives the inputs' sizes for a microbatch of a step, the same on every rank; the first call comes
// after read_data, the others as steps begin; `input` and
// `output` as in StageSettings. Collective; throws the same Error on every rank.
void OpenSession(Session& session, const SessionOptions& options, Transport& transport,
                 std::function<std::vector<TensorSpec>(int64_t step, int microbatch)> specs,
                 std::function<at::Tensor(int i, int64_t minibatch, int microbatch)> input,
                 std::function<void(int, int, const at::Tensor&)> output = {});

// Runs one step (from 0) of this rank: a minibatch, or those that the job accumulates. Where the
// loss's stage has replicas, the first of them waits for the losses of the others. What it throws
// is this rank's alone: the others must be aborted.
void RunStep(Session& session, Transport& transport, int64_t step);

// Runs the steps `step` to `step` + `count` - 1 of an asynchronous schedule (IsAsynchronous) in a
// row. As RunStep; microbatches are counted on through all of them.
void RunSteps(Session& session, Transport& transport, int64_t step, int64_t count);

// Runs one sweep of this rank forward only and adds its losses, on the rank that has them. As
// RunStep.
void RunSweep(Session& session, int64_t minibatch, Evaluation& evaluation);

// "stage 0: modules 0-1" of one rank, for people.
std::string Describe(const Session& session, int rank);
// "modules 0-2: lists of operations; module 3: autograd (control flow)"; "" where
// nobody asked for a body, or for autograd. Collective.
std::string DescribeBodies(const Session& session, Transport& transport);

}  // namespace pipewright
