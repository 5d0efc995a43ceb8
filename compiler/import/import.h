// Models in: a file becomes one graph with named weights.
#pragma once
#include <string>

#include "passes/model.h"

namespace pipewright {

// Reads a .pt2 archive of torch.export.save (schema major 8). Throws Error naming file, node and
// the line of the model for what cannot be imported.
Model ImportExport(const std::string& path);

}  // namespace pipewright
