// The one call that a package is for, in words.
#pragma once
#include <string>

#include "plan/manifest.h"

namespace pipewright {

// "the model was exported for the call (x: float32 [s0, 4], mask: float32 [4])"; of a TorchScript
// model, whose file says neither, "the model takes (x, mask)".
std::string CallText(const Manifest& manifest);

}  // namespace pipewright
