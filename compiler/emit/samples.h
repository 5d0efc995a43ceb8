// Keeps the example that a model was exported or traced with in its package, to measure and try the
// model.
#pragma once
#include <string>

#include "formats/manifest.h"
#include "passes/graph/model.h"

namespace pipewright {

// Writes `path`, a safetensors file with one tensor per input, under its name. Writes nothing if
// the model has no example, or if the example's tensors do not match the model's inputs.
void WriteSamples(const Model& model, const Manifest& manifest, const std::string& path);

}  // namespace pipewright
