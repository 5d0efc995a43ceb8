// The example that a model was exported with, kept in its package to measure and try it with.
#pragma once
#include <string>

#include "formats/manifest.h"
#include "passes/graph/model.h"

namespace pipewright {

// Writes `path`, a safetensors file with a tensor for each input, named like it. Writes nothing
// where the archive has no example, or one that is not as many tensors as the model takes.
void WriteSamples(const Model& model, const Manifest& manifest, const std::string& path);

}  // namespace pipewright
