// Loads a module without some of its weights, and finds these in its file.
#pragma once
#include <string>
#include <vector>

#include "formats/weights/safetensors.h"
#include "runtime/module/module.h"

namespace pipewright {

// Loads like LoadModule, for running: statistics are checked (ops/statistics.h). Weights
// selected by `left_out`, by index in ModuleInfo::held (empty: none), become tensors without
// elements. Weights defined in `known` (same indices) are taken from there, not read.
LoadedModule LoadModuleWithout(const std::string& package, const Manifest& manifest, int index,
                               const std::vector<bool>& left_out,
                               const std::vector<at::Tensor>& known = {},
                               WeightSource weights = WeightSource::kFile);

// Returns the entry of a weight in a file; its type and shape must match the manifest. Throws
// Error.
const TensorInfo& CheckedWeight(const SafetensorsFile& file, const WeightInfo& weight);

}  // namespace pipewright
