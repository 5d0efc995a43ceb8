// A module loaded without some of its weights, and where those lie in its file.
#pragma once
#include <string>
#include <vector>

#include "plan/safetensors.h"
#include "runtime/module.h"

namespace pipewright {

// As LoadModule, to be run: statistics are checked (passes/statistics.h). Weights that `left_out`
// names, by their place in ModuleInfo::held (empty: none), are tensors without elements; `known`
// ones (the same; undefined: not) are not read.
LoadedModule LoadModuleWithout(const std::string& package, const Manifest& manifest, int index,
                               const std::vector<bool>& left_out,
                               const std::vector<at::Tensor>& known = {});

// The entry of a weight in a file, of the manifest's type and shape. Throws Error.
const TensorInfo& CheckedWeight(const SafetensorsFile& file, const WeightInfo& weight);

}  // namespace pipewright
