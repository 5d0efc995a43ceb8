// What edits of modules' code do to gradients, found before a run starts: a `detach` in one module
// ends the training of those before it without a word.
#pragma once
#include <string>
#include <vector>

#include "plan/manifest.h"

namespace pipewright {

struct TensorSpec;

// Sentences for people: the modules, and the weights of edited ones, that the manifest trains and
// that no gradient of `losses` (ids of values) reaches since code was edited, with the line that
// stops it. `inputs`: as in InferShapes. Nothing is run where no module was edited.
std::vector<std::string> LostGradients(const std::string& package, const Manifest& manifest,
                                       const std::vector<TensorSpec>& inputs,
                                       const std::vector<int>& losses);

}  // namespace pipewright
