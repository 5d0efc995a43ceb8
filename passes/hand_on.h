// Values that go on from one of their users to the next, for the order in which gradients are added.
#pragma once
#include "passes/split.h"

namespace pipewright {

// In one process autograd adds to the gradient of a value use by use, the last one first. A module
// gives back one sum for all its uses, so a module that uses a value twice or more has to know what
// the modules behind it give before it adds its own: it hands the value on to them, as its last
// operation, and the gradient comes back the same way. Others take their values from where they are
// made.
void HandOn(Model& model, Assignment& assignment);

}  // namespace pipewright
