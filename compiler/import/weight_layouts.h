// Handles weights whose layout in memory does not follow the order of their dimensions:
// convolutions in channels_last, transposed matrices. Packages store them contiguously.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Makes each use of such a weight read it in the model's own layout, on which rounding and the
// results of as_strided and stride() depend. Only marks weights that are written, and those with
// gaps between their elements (Weight::own_layout).
void KeepLayouts(Model& model);

}  // namespace pipewright
