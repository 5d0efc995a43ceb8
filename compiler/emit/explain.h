// Explains why every group of nodes is where it is.
#pragma once
#include <string>

#include "formats/manifest.h"
#include "passes/split/bodies.h"

namespace pipewright {

// Returns text that says for each module where it starts and why, its submodules, operations and
// weights, its inputs and outputs, and changes made by the passes; then lists the shared weights.
std::string Explain(const Model& model, const std::vector<ModuleBody>& bodies,
                    const Manifest& manifest);

}  // namespace pipewright
