// Imports a model file as one graph with named weights.
#pragma once
#include <string>
#include <vector>

#include "passes/graph/model.h"

namespace pipewright {

struct ImportOptions {
  // TorchScript: the inputs that a run provides; empty: those without a default value. The others
  // take their defaults.
  std::vector<std::string> inputs;
};

// Reads a .pt2 archive of torch.export.save (schema major 8) or a .pt of torch.jit.save, which are
// told apart by their records. Throws Error naming file, node and line of the model if something
// cannot be imported.
Model ImportModel(const std::string& path, const ImportOptions& options = {});

}  // namespace pipewright
