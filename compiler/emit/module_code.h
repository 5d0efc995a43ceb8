// Prints a module's code: TorchScript text that a person can edit and the runtime compiles.
#pragma once
#include <string>

#include "passes/split/bodies.h"

namespace pipewright {

// Returns `class ModuleK(Module)` with the module's weights as attributes and `forward`. The text
// is deterministic. Throws Error if it does not compile again.
std::string ModuleCode(const Model& model, const ModuleBody& body, int index);

}  // namespace pipewright
