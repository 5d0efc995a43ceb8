// A module's code: TorchScript text that a person can edit and the runtime compiles.
#pragma once
#include <string>

#include "passes/split/bodies.h"

namespace pipewright {

// `class ModuleK(Module)` with the module's weights as attributes and `forward`. The same text from
// the same input. Throws Error when the text does not compile again.
std::string ModuleCode(const Model& model, const ModuleBody& body, int index);

}  // namespace pipewright
