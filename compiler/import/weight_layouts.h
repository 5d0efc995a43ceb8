// Weights that lie in memory in another order than that of their dimensions: convolutions in
// channels_last, transposed matrices. Packages store them contiguously.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Lets each use of such a weight read it in the model's own layout, on which rounding and the
// results of as_strided and stride() depend. Weights that are written, and those with gaps between
// their elements, are only marked (Weight::own_layout).
void KeepLayouts(Model& model);

}  // namespace pipewright
