// Models in: a file becomes one graph with named weights.
#pragma once
#include <string>
#include <vector>

#include "compiler/import/archive.h"
#include "passes/model.h"

namespace pipewright {

struct ImportOptions {
  // TorchScript: the inputs that a run gives; empty: those without a default value. The others take
  // their defaults.
  std::vector<std::string> inputs;
};

// Reads a .pt2 archive of torch.export.save (schema major 8), or a .pt of torch.jit.save; which of
// them a file is, its records say. Throws Error naming file, node and the line of the model for
// what cannot be imported.
Model ImportModel(const std::string& path, const ImportOptions& options = {});

// The two kinds; `archive` is one.
Model ImportExport(const Archive& archive);
Model ImportScript(const Archive& archive, const ImportOptions& options);

}  // namespace pipewright
