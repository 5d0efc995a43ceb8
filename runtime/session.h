// A package, a conf and a job made ready to run on this rank.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/run_plan.h"
#include "runtime/data.h"
#include "runtime/exec/executor.h"
#include "runtime/stage.h"

namespace pipewright {

struct SessionOptions {
  std::string package;
  std::string conf;      // empty: PACKAGE/conf/mp_conf.json
  std::string weights;   // a safetensors file that replaces the package's weights; empty: none
  bool training = true;  // false: forward only
  bool has_loss = true;
  bool keep_gradients = false;
  std::string agreed = "";  // what else must be the same on every rank
  // Called with the stages loaded, on all ranks; changes their weights and returns the step that
  // is to be the first. Empty: step 0.
  std::function<int64_t(struct Session&)> restore = nullptr;
};

// Addresses inside are taken: stays where it was made.
struct Session {
  Session() = default;
  Session(const Session&) = delete;

  Job job;
  RunPlan run;
  std::vector<SharedGroup> groups;
  std::unique_ptr<TorchStages> stages;
  std::unique_ptr<Executor> executor;
};

// Reads, agrees with the other ranks that all read the same, loads this rank's stages. `specs`
// gives the inputs' sizes for one microbatch and is called when the manifest is there; `input` and
// `output` as in StageSettings. Collective; throws the same Error on every rank.
void OpenSession(Session& session, const SessionOptions& options, Transport& transport,
                 const std::function<std::vector<TensorSpec>()>& specs,
                 std::function<at::Tensor(int, int)> input,
                 std::function<void(int, int, const at::Tensor&)> output = {});

// Runs one step (from 0) of this rank. What it throws is this rank's alone: the others must be
// aborted.
void RunStep(Session& session, int64_t step);

// "stage 0: modules 0-1" of one rank, for people.
std::string Describe(const Session& session, int rank);

}  // namespace pipewright
