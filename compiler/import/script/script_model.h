// Imports a .pt archive of torch.jit.save.
#pragma once
#include <string>
#include <vector>

#include "formats/torch/archive.h"
#include "passes/graph/model.h"

namespace pipewright {

// `inputs` names the arguments that a run provides; empty: those without a default value. The
// others take their defaults. Throws Error naming file and line of the model if something cannot be
// imported.
Model ImportScript(const Archive& archive, const std::vector<std::string>& inputs);

}  // namespace pipewright
