// Finds which weights of a package's modules are one tensor of the model.
#pragma once
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

// [module][ModuleInfo::held]: a number, the same for two weights that a rank needs only once. In a
// run that trains these are frozen parameters alone: each module steps a copy of what is trained,
// and keeps the buffers that it may change.
std::vector<std::vector<int>> TensorIds(const Manifest& manifest, bool training);

}  // namespace pipewright
