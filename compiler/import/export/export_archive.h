// Imports a .pt2 archive of torch.export.save (schema major 8).
#pragma once
#include "formats/torch/archive.h"
#include "passes/graph/model.h"

namespace pipewright {

// Throws Error naming file, node and line of the model if something cannot be imported.
Model ImportExport(const Archive& archive);

}  // namespace pipewright
