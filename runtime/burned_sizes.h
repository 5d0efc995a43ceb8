// Sizes that tracing burned into a model (x.view(4, -1) for x.view(x.size(0), -1)) and that let
// another batch size pass, its samples mixed.
#pragma once
#include <string>
#include <vector>

#include "runtime/shapes.h"

namespace pipewright {

// Runs the modules on zeros of `inputs`, and of inputs with twice as many samples (their first
// dimension). A reshape that is given the same sizes both times, and whose first is neither -1 nor
// the number of samples while -1 makes up for it elsewhere, mixes samples: says which, with the
// line of the module's code. "": there is none, or the model takes one number of samples only.
// Nothing is run of packages whose sizes were recorded.
std::string FindBurnedSizes(const std::string& package, const Manifest& manifest,
                            const std::vector<TensorSpec>& inputs);

// Where in a module's code the calling thread is: FILE:LINE; "": nowhere.
std::string LineOfCode();

}  // namespace pipewright
