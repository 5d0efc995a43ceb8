// Finds values that are another value under a second name.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

// Lets modules, and the model's outputs, use the operand in place of the result of an operation of
// another module that returns its operand: dropout(x, 0.), and where the export knows x's dtype or
// number of dimensions, x.to(dtype) of that dtype, flatten of one dimension, and atleast_1d, 2d and
// 3d of as many. In one process both are one tensor with one gradient. Two values that cross
// a cut would have two, whose sum is added in another order.
void UseOperands(Model& model, ModuleAssignment& assignment);

}  // namespace pipewright
