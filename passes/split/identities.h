// Finds values that are another value under a second name.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

// Some operations return their operand: dropout(x, 0.); and, where the export knows the dtype and
// the number of dimensions of x, x.to(dtype) of that dtype, flatten of a single dimension, and
// atleast_1d, 2d and 3d of enough dimensions. In one process the result and x are one tensor with
// one gradient. If both crossed a cut, each would have a gradient, and the two would be added in
// another order. So other modules, and the model's outputs, use x in place of the result.
void UseOperands(Model& model, ModuleAssignment& assignment);

}  // namespace pipewright
