// The one call that a package is for, in words.
#pragma once
#include <string>
#include <vector>

#include "plan/manifest.h"

namespace pipewright {

// "(x: float32 [s0, 4], n: int)", or "(x)" of a tensor of which nothing is known.
std::string CallText(const std::vector<ValueInfo>& inputs);

// "the model was exported for the call (x: float32 [s0, 4], mask: float32 [4])"; of a TorchScript
// model, whose file says neither, "the model takes (x, mask)".
std::string CallText(const Manifest& manifest);

}  // namespace pipewright
