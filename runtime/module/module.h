// Loads one module of a package: compiles its code and reads its weights.
#pragma once
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

struct RecordedBodies;

struct LoadedModule {
  int index = -1;                   // in the manifest
  std::string edited;               // EditedPlace, if its code is not what was compiled
  int return_line = 0;              // the line of forward's last return; 0: it has none at its end
  std::vector<at::Tensor> weights;  // in the order of ModuleInfo::held; leaves of autograd
  std::vector<size_t> buffers;      // indices of weights that forward may write to
  // Parameters that forward writes to: it must run once a microbatch (written_weights.h).
  std::vector<std::string> written_parameters;
  // For each weight: the factor by which a microbatch scales running statistics; unset for others.
  std::vector<std::optional<double>> kept_parts;
  c10::intrusive_ptr<c10::ivalue::Object> self;
  std::shared_ptr<torch::jit::CompilationUnit> unit;
  std::shared_ptr<torch::jit::Graph> graph;  // the graph of forward, without calls
  std::unique_ptr<torch::jit::Code> code;    // compiled from `graph`
  bool switches_gradients = false;           // it has regions with or without gradients
  std::shared_ptr<RecordedBodies> recorded;  // UseBody; null: autograd's body only
};

enum class WeightSource {
  kFile,
  kZeros,  // zeros, except constants, because a trace computes sizes from them
  kOther,  // zeros for what a state dict has, which another file provides
};

// Selects how a module's weights are loaded. Lists are by index in ModuleInfo::held; empty: none.
struct WeightOptions {
  WeightSource source = WeightSource::kFile;
  std::vector<bool> left_out = {};     // become tensors without elements
  std::vector<at::Tensor> known = {};  // where defined, used instead of reading the weight
  at::Device device = at::kCPU;        // the place of the weights and of the computation
};

// Compiles PACKAGE/modules/moduleK.py and checks its interface against the manifest. Throws Error
// with file, line and caret if the code does not compile.
LoadedModule LoadModule(const std::string& package, const Manifest& manifest, int index,
                        WeightSource weights = WeightSource::kFile);

// Loads like LoadModule, for running: statistics are checked (ops/statistics.h).
LoadedModule LoadModuleWith(const std::string& package, const Manifest& manifest, int index,
                            const WeightOptions& options);

// Sets the mode of dropout, batch norm and similar operators.
void SetTraining(LoadedModule& module, bool training);

// Runs the module's code on its inputs and returns its outputs, both in the manifest's order.
std::vector<c10::IValue> Run(const LoadedModule& module, std::vector<c10::IValue> inputs);

}  // namespace pipewright
