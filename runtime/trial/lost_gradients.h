// Finds, before a run starts, edits of module code that stop gradients: a `detach` in one module
// silently ends the training of the modules before it.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

struct TensorSpec;

// Returns sentences for the user: the modules, and the weights of edited modules, that the manifest
// trains but that no gradient of `losses` (value ids) reaches since the code was edited, with the
// line that stops it. `inputs` are as in InferShapes. Runs nothing if no module was edited.
std::vector<std::string> LostGradients(const std::string& package, const Manifest& manifest,
                                       const std::vector<TensorSpec>& inputs,
                                       const std::vector<int>& losses);

}  // namespace pipewright
