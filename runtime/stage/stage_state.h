// Defines the state of TorchStages; only its source files include it.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "runtime/stage/device_clock.h"
#include "runtime/stage/edges.h"
#include "runtime/stage/gradient_sums.h"
#include "runtime/stage/island.h"
#include "runtime/stage/offload.h"
#include "runtime/stage/replica_buffers.h"
#include "runtime/stage/slot_memory.h"
#include "runtime/stage/stage.h"
#include "tensors/device_memory.h"
#include "tensors/late_numbers.h"

namespace pipewright {

// The state that a stage keeps of a microbatch from I to W.
struct WeightWork {
  std::map<int, WeightTail> tails;              // by module, for modules whose I has run
  std::map<int, GradientTerms> gradient_terms;  // by value, for the others
  // By module: all gradients that W adds, if the weights are loaded for I only.
  std::map<int, Tensors> gradients;
};

// The state that a module keeps of a microbatch from forward to backward: what autograd saved, or
// the inputs to recompute it from.
struct ModuleWork {
  Kept kept;
  std::optional<std::vector<c10::IValue>> inputs;
  Tensors buffers;  // buffers that forward changes, as they were before its first run
};

// The state that a stage keeps of a microbatch from F to the end of its B or W.
struct MicrobatchWork {
  std::map<int, ModuleWork> modules;
  // The values that a recomputed stage received, with their ids.
  std::optional<std::vector<std::pair<int, c10::IValue>>> received;
  std::map<int, std::pair<at::Tensor, at::Tensor>> losses;  // by loss: output and loss
  WeightWork weights;
};

// The weights of a stage in a plan that names versions: n is the result of n steps since SetStep.
struct StageVersions {
  int steps = 0;
  int current = -1;  // the version that the modules hold; -1: the plan names none
  std::map<int, std::map<int, Tensors>> weights;  // by version and module, in order of `held`
  std::map<int, int> users;  // by version: microbatches between forward and backward
};

struct TorchStages::State {
  const StageSettings settings;
  const Job& job;
  const Manifest& manifest;
  const Conf& conf;
  const StageGraph& graph;
  const at::Device device;  // on which the modules compute
  DeviceClock clock;
  Transport* values;          // see TorchStages::ReceiveOver
  const MemorySource memory;  // memory that other ranks can write to
  SlotMemory receive_buffers;
  bool training;                  // now: false in an evaluation
  Microbatches* source = nullptr;                     // the source of the minibatch, since SetStep
  std::vector<EdgeContents> contents;                 // by edge
  std::vector<std::vector<int>> edges_in, edges_out;  // by stage
  std::vector<std::vector<int>> modules_of;           // by stage, of this rank
  // By module of this rank: whether gradients of its inputs flow on to another stage. I runs only
  // such modules; W runs the whole backward of the others.
  std::vector<bool> feeds_back;
  // By module of this rank: which inputs need a gradient, and which outputs can receive one.
  std::vector<std::vector<bool>> wanted, returned;
  std::vector<bool> learning;  // by stage: whether its backward has anything to compute
  std::vector<bool> recompute;  // by module
  // By stage of this rank: whether all its modules are recomputed. If so, only what the stage
  // received is kept; otherwise the inputs of the recomputed modules.
  std::vector<bool> recomputed;
  std::map<int, LoadedModule> modules;  // this rank's modules, by index
  std::unique_ptr<OffloadedWeights> offloaded;
  GradientSums gradients;
  Updater updater;
  std::map<std::pair<int, int>, MicrobatchWork> under_way;  // (stage, microbatch)
  std::map<int, std::vector<size_t>> changing;  // by module: the weights that forward changes
  std::map<int, std::set<std::string>> written;  // by module: the weights that its code writes
  // By module: the weights and buffers that its code writes, as before the last evaluation.
  std::optional<std::map<int, std::map<size_t, at::Tensor>>> before_evaluation;
  std::vector<int> loss_values, loss_stages;  // by loss: the value it is computed from; its stage
  std::vector<std::shared_ptr<const std::vector<TensorSpec>>> specs;  // by microbatch, of the step
  LossTerms terms;
  LateNumbers late;                                 // of `terms`, and of the updater
  std::unique_ptr<ReplicaBuffers> replica_buffers;  // null: they are not merged
  int64_t step = 0;
  int running = -1;      // the module that runs, or ran last; -1: none yet
  bool watches = false;  // see TorchStages::Watch
  std::optional<BadValue> bad_value;
  std::map<int, StageVersions> versions;  // by stage

  explicit State(const StageSettings& s);

  const ValueInfo& value(int id) const { return manifest.values[id]; }
  size_t WeightIndex(int module, const std::string& name) const;

  // Returns the module's state of a microbatch.
  ModuleWork& WorkOf(int module, int microbatch) {
    return under_way[{conf.module_to_stage[module], microbatch}].modules[module];
  }

  // Returns the id of the value of each tensor in a message.
  std::vector<int> MessageValues(int edge, bool backward) const;

  bool Recomputes(int module) const {
    return training && recompute[module];
  }

  // Defined in stage.cc.
  void AwaitDevice() { clock.Await(*values); }
  void CheckWrittenParameters();
  const std::set<std::string>& Written(int module);
  void KeepWritten();
  void PutBackWritten();
  void LookUpEdges();
  void LoadModules();
  void LookUpGradients();
  void LookUpRecompute();
  void RunModules(int stage, int microbatch, std::vector<c10::IValue>& values, bool again);
  void LookAt(int module, int microbatch, const std::vector<c10::IValue>& outputs);
  std::vector<c10::IValue> RunModule(int index, int microbatch, std::vector<c10::IValue> inputs,
                                     Kept* keep) const;
  void ComputeLosses(int stage, int microbatch, const std::vector<c10::IValue>& values, bool keep);
  void ComputeLoss(int loss, int microbatch, const at::Tensor& output, bool keep);
  bool StopsAtLoss() const;

  // Microbatches are numbered consecutively through the minibatches of a step.
  int64_t Minibatch(int microbatch) const { return step + microbatch / job.microbatches; }
  int Within(int microbatch) const { return microbatch % job.microbatches; }
  at::Tensor Input(int i, int microbatch) const {
    return source->Input(i, Minibatch(microbatch), Within(microbatch));
  }

  c10::IValue InputValue(int input, int microbatch) const;
  bool IsWeight(int stage, const at::Tensor& tensor) const;

  // Defined in versions.cc.
  void Hold(int stage, int version);
  void MakeVersion(int stage);

  // Defined in memory_error.cc.
  std::string Explained(const std::string& error, bool loads) const;

  // Defined in recompute.cc.
  std::vector<c10::IValue> RunForgetting(int index, int microbatch,
                                         std::vector<c10::IValue> inputs);
  std::vector<c10::IValue> RunAgain(int index, int microbatch, std::vector<c10::IValue> inputs,
                                    Kept* keep);
  void RecomputeStage(int stage, int microbatch);
  Kept TakeKept(int index, int microbatch);

  // Defined in stage_backward.cc.
  std::map<int, GradientTerms> ReadGradientTerms(int stage,
                                                 const std::vector<Bundle>& gradients) const;
  void LossGradients(MicrobatchWork& work, std::map<int, GradientTerms>& gradient_terms) const;
  Tensors TakeGradients(int index, std::map<int, GradientTerms>& gradient_terms) const;
  void AddGradientTerms(int index, Tensors gradients,
                        std::map<int, GradientTerms>& gradient_terms) const;
  Tensors BackwardModule(int index, int microbatch, std::map<int, GradientTerms>& gradient_terms);
  std::vector<Bundle> WriteGradientTerms(int stage, int microbatch,
                                         const std::map<int, GradientTerms>& gradient_terms) const;
};

}  // namespace pipewright
