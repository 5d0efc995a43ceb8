// Recreates values in each module if that is cheaper than sending them.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

// Gives every module its own constants, lists and sizes. A constant or list that several modules
// use is created in each. An integer from another module is read from a tensor that enters anyway,
// if the export recorded that one of its dimensions is this very size, or recomputed from such
// integers. Only tensors still cross between modules, and integers that only their producer knows.
void Localize(Model& model, ModuleAssignment& assignment);

}  // namespace pipewright
