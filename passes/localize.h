// What is cheaper to make again than to send.
#pragma once
#include "passes/split.h"

namespace pipewright {

// Gives every module its own constants, lists and sizes: a constant or list that several modules
// use is made in each; an integer from another module is read off a tensor that enters anyway,
// where the export recorded that a dimension of it is this very size, or computed again from such.
// What remains to cross between modules are tensors, and integers that only their producer knows.
void Localize(Model& model, Assignment& assignment);

}  // namespace pipewright
