// Loads a module as a run needs it, and finds its weights in its file.
#pragma once
#include <string>
#include <vector>

#include "formats/weights/safetensors.h"
#include "runtime/module/module.h"

namespace pipewright {

// Selects how a module's weights are loaded. Lists are by index in ModuleInfo::held; empty: none.
struct WeightOptions {
  WeightSource source = WeightSource::kFile;
  std::vector<bool> left_out = {};      // become tensors without elements
  std::vector<at::Tensor> known = {};   // those defined are taken from here, not read
  at::Device device = at::kCPU;         // where weights lie and code computes
};

// Loads like LoadModule, for running: statistics are checked (ops/statistics.h).
LoadedModule LoadModuleWith(const std::string& package, const Manifest& manifest, int index,
                            const WeightOptions& options);

// Returns the entry of a weight in a file; its type and shape must match the manifest. Throws
// Error.
const TensorInfo& CheckedWeight(const SafetensorsFile& file, const WeightInfo& weight);

}  // namespace pipewright
