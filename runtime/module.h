// One module of a package, loaded: its code compiled, its weights in memory.
#pragma once
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/script.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/manifest.h"

namespace pipewright {

struct RecordedBodies;

struct LoadedModule {
  int index = -1;                   // in the manifest
  std::vector<at::Tensor> weights;  // in the order of ModuleInfo::held; leaves of autograd
  std::vector<size_t> buffers;      // those of the weights that forward may write to
  // As `weights`: what running statistics keep of themselves in a microbatch; others have none.
  std::vector<std::optional<double>> kept_parts;
  c10::intrusive_ptr<c10::ivalue::Object> self;
  std::shared_ptr<torch::jit::CompilationUnit> unit;
  std::shared_ptr<torch::jit::Graph> graph;  // of forward, without calls
  std::unique_ptr<torch::jit::Code> code;    // of `graph`
  std::shared_ptr<RecordedBodies> recorded;  // UseBody; null: autograd's body only
};

enum class WeightSource {
  kFile,
  kZeros,  // zeros, but for constants: a trace computes sizes with them
};

// Compiles PACKAGE/modules/moduleK.py and checks that its interface is the manifest's. Throws Error
// with file, line and caret for code that does not compile.
LoadedModule LoadModule(const std::string& package, const Manifest& manifest, int index,
                        WeightSource weights = WeightSource::kFile);

// Dropout, batch norm and the like follow this flag.
void SetTraining(LoadedModule& module, bool training);

// Runs the module's code on its inputs; returns its outputs, both in the manifest's order.
std::vector<c10::IValue> Run(const LoadedModule& module, std::vector<c10::IValue> inputs);

}  // namespace pipewright
