// Reads manifest.json, the description of a package, which `compile` writes and every other program
// reads.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_kind.h"
#include "formats/conf.h"
#include "plan/plan.h"

namespace pipewright {

enum class ValueKind { kTensor, kInt, kFloat, kBool, kNone };

// The names in manifests and messages: "tensor", "int", "float", "bool", "none".
const char* ToText(ValueKind kind);
std::optional<ValueKind> ValueKindFromText(const std::string& text);

// The way a job merges the replicas' copies of a buffer.
enum class BufferMerge {
  kUpdates,  // running statistics: applies each microbatch's update, in the microbatches' order
  kSum,      // adds the replicas' counts
  kMean,     // weights each replica by its microbatches
  kNone,
};

// The names in manifests: "updates", "sum", "mean", "none".
const char* ToText(BufferMerge merge);
std::optional<BufferMerge> BufferMergeFromText(const std::string& text);

// A tensor or scalar that leaves a module (or is an input of the model) and enters others.
struct ValueInfo {
  std::string name;  // unique among values; also the name in the modules' code
  ValueKind kind = ValueKind::kTensor;
  std::string dtype;  // torch's name: float32, int64, ...; empty for scalars, and if the model file
                      // does not say (TorchScript): then shape is empty too
  std::vector<std::string>
      shape;                   // numbers, or expressions of symbols where dynamic ("s0", "2*s0")
  bool gradient = false;       // a gradient flows back along it
  int producer = -1;           // module; -1: an input of the model
  std::vector<int> consumers;  // modules, ascending
  std::string weight;          // name of a shared weight that `producer` keeps and sends, or ""
};

struct WeightInfo {
  std::string name;  // as in the module's code and its weight file
  WeightKind kind = WeightKind::kParameter;
  std::string dtype;
  std::vector<int64_t> shape;
  bool requires_grad = false;  // parameters only: false if frozen
  bool persistent = true;      // buffers: part of the state dict
  // Parameters: the index in model.parameters(). -1: the package was compiled before this was
  // recorded.
  int place = -1;
  BufferMerge merge = BufferMerge::kMean;  // buffers only
};

// The inputs and parameters of a module that have a gradient, but get none from a given output.
struct NoGradient {
  std::vector<int> inputs;           // ids into Manifest::values
  std::vector<std::string> weights;  // names in `held`
};

struct ModuleInfo {
  std::string name;                 // module0
  std::string code;                 // modules/module0.py
  std::string weights;              // weights/module0.safetensors
  std::string code_hash;            // HexHash of the code as written; differs if it was edited
  std::vector<std::string> covers;  // the source model's submodules whose operations are here
  std::vector<int> inputs,
      outputs;                   // ids into Manifest::values, in the order of forward's signature
  std::vector<WeightInfo> held;  // in the order of the code's attributes
  bool skipped = false;          // not run; set by KeepOutputs
  // By output, as compiled; outputs that send a gradient to all of them are not listed.
  std::map<int, NoGradient> no_gradient = {};
  // LineHashes of the code as written, which tell what was edited. Earlier versions wrote none.
  std::string line_hashes = {};
};

// One weight that several modules hold, each under its own name; gradients are summed.
struct SharedWeight {
  struct Holder {
    int module = -1;
    std::string name;  // in that module
  };
  std::vector<Holder> holders;  // ascending by module, one entry per module
};

struct Manifest {
  std::string version;                                         // of pipewright
  std::string source;                                          // file name of the model
  bool exported_in_training = true;                            // false: exported in evaluation mode
  std::map<std::string, std::pair<int64_t, int64_t>> symbols;  // range of each dynamic size
  std::vector<std::string> guards;  // conditions on the symbols that inputs meet: "(s0 % 2) == 0"
  std::vector<ValueInfo> values;
  std::vector<int> inputs, outputs;  // values, in the order of the model's signature
  std::vector<ModuleInfo> modules;
  std::vector<SharedWeight> shared;
  // State-dict names of one tensor, sorted; files store the first.
  std::vector<std::vector<std::string>> tied;
  std::vector<std::string> op_libraries;
};

// Reads PACKAGE/manifest.json and checks its consistency: ids in range, producers before consumers,
// files named. Throws Error naming file and key.
Manifest ReadManifest(const std::string& package);
// Parses the text of a manifest; messages name `file`.
Manifest ParseManifest(std::string_view text, const std::string& file);
std::string WriteManifest(const Manifest& manifest);

// Drops the outputs that are not in `names` (if that is empty, keeps all), skips the modules that
// only those need, and drops unneeded inputs. Throws Error naming `where` for an unknown output.
void KeepOutputs(Manifest& manifest, const std::vector<std::string>& names,
                 const std::string& where);
// Returns the names of the outputs for which an input is not needed.
std::vector<std::string> OutputsWithout(const Manifest& manifest, int input);

// Returns true if the holders of `weight` train it, so that its gradients are summed.
bool Trained(const Manifest& manifest, const SharedWeight& weight);

// Returns the package's stages and edges under `conf`. Its `shared` has only trained weights.
StageGraph MakeStageGraph(const Manifest& manifest, const Conf& conf);

}  // namespace pipewright
