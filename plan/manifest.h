// manifest.json: what a package holds, as `compile` wrote it and every other program reads it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plan/conf.h"
#include "plan/plan.h"

namespace pipewright {

// A tensor or scalar that leaves a module (or the model's caller) and enters others.
struct ValueInfo {
  std::string name;             // unique among values; the name it has in the modules' code
  std::string kind = "tensor";  // tensor, int, float, bool, none
  std::string dtype;            // torch's word: float32, int64, ...; empty for scalars, and where
                      // the model file does not say (TorchScript): then shape is empty too
  std::vector<std::string>
      shape;                   // numbers, or expressions of symbols where dynamic ("s0", "2*s0")
  bool gradient = false;       // whether a gradient flows back along it
  int producer = -1;           // module; -1: an input of the model
  std::vector<int> consumers;  // modules, ascending
  std::string weight;          // a shared weight that `producer` keeps and sends: its name; else empty
};

struct WeightInfo {
  std::string name;                // as in the module's code and its weight file
  std::string kind = "parameter";  // parameter, buffer, constant
  std::string dtype;
  std::vector<int64_t> shape;
  bool requires_grad = false;  // parameters only: frozen ones are false
  bool persistent = true;      // buffers: part of the state dict
  // Parameters: which of model.parameters() it is. -1: the package was compiled before this was
  // written down.
  int place = -1;
  // Buffers of a stage with replicas, where the job merges them: "updates" (running statistics:
  // what each microbatch adds, in the order of the microbatches), "sum" (of what the replicas
  // counted), "mean" (of the replicas, weighted by their microbatches), "none".
  std::string merge = "mean";
};

struct ModuleInfo {
  std::string name;                 // module0
  std::string code;                 // modules/module0.py
  std::string weights;              // weights/module0.safetensors
  std::string code_hash;            // HexHash of the code as written; another hash: edited by hand
  std::vector<std::string> covers;  // the source model's submodules whose operations lie here
  std::vector<int> inputs,
      outputs;                   // ids into Manifest::values, in the order of forward's signature
  std::vector<WeightInfo> held;  // in the order of the code's attributes
};

// One weight that several modules hold, each under a name of its own; gradients are summed.
struct SharedWeight {
  struct Holder {
    int module = -1;
    std::string name;  // in that module
  };
  std::vector<Holder> holders;  // ascending by module, one entry a module
};

struct Manifest {
  std::string version;                                         // of pipewright
  std::string source;                                          // file name of the model
  bool exported_in_training = true;                            // false: exported in evaluation mode
  std::map<std::string, std::pair<int64_t, int64_t>> symbols;  // range of each dynamic size
  std::vector<ValueInfo> values;
  std::vector<int> inputs, outputs;  // values, in the order of the model's signature
  std::vector<ModuleInfo> modules;
  std::vector<SharedWeight> shared;
  // State-dict names that mean one tensor, sorted; the first is the one that files keep.
  std::vector<std::vector<std::string>> tied;
  std::vector<std::string> op_libraries;
};

// Reads PACKAGE/manifest.json and checks that it is consistent: ids in range, producers before
// consumers, files named. Throws Error naming file and key.
Manifest ReadManifest(const std::string& package);
// The same of its text; `file` is for messages.
Manifest ParseManifest(std::string_view text, const std::string& file);
std::string WriteManifest(const Manifest& manifest);

// Whether the holders of `weight` train it, so that its gradients are summed.
bool Trained(const Manifest& manifest, const SharedWeight& weight);

// Stages and edges of the package under `conf`; `shared` are the groups that are trained.
StageGraph MakeStageGraph(const Manifest& manifest, const Conf& conf);

}  // namespace pipewright
