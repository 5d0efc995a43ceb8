// Why every group of nodes is where it is.
#pragma once
#include <string>

#include "formats/manifest.h"
#include "passes/split/bodies.h"

namespace pipewright {

// For each module: where it starts and why, its submodules, operations and weights, what it takes
// and gives, and what the passes did in it; then the shared weights.
std::string Explain(const Model& model, const std::vector<ModuleBody>& bodies,
                    const Manifest& manifest);

}  // namespace pipewright
