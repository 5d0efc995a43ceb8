// Puts the profiles of single modules together.
#pragma once
#include "formats/profile/profile.h"

namespace pipewright {

// Appends the nodes of one module, whose inputs are values without a producer. If `profile` has a
// value of an input's name, the module's nodes become consumers of that value.
void AppendModule(Profile& profile, const Profile& module);

// Fills `profile.shared` with the trained weights that several nodes of a module hold under one
// name, and with those that several modules share according to `manifest`.
void ShareWeights(Profile& profile, const Manifest& manifest);

}  // namespace pipewright
