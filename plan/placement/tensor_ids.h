// Finds the weights of a package's modules that are the same tensor of the model.
#pragma once
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

// Returns an id for [module][ModuleInfo::held]. A rank needs weights with the same id only once. In
// a run that trains, only frozen parameters share an id: each module steps its own copy of a
// trained parameter, and keeps its own buffers, which it may change.
std::vector<std::vector<int>> TensorIds(const Manifest& manifest, bool training);

}  // namespace pipewright
