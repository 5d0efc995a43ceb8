// Passes values on from one user to the next, to fix the order in which gradients are added.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

// In one process, autograd adds to the gradient of a value use by use, the last one first. A module
// returns one sum for all its uses. So a module with two or more uses of a value needs the gradient
// of the later modules before it adds its own: it passes the value on to them, as its last
// operation, and the gradient comes back along the same path. Other modules take their values
// directly from the producer.
void PassThrough(Model& model, ModuleAssignment& assignment);

}  // namespace pipewright
