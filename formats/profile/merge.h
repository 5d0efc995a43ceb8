// A profile put together from those of single modules.
#pragma once
#include "formats/profile/profile.h"

namespace pipewright {

// Adds the nodes of one module behind those that are there. What the module takes are values
// without a producer; those that `profile` has under that name gain its nodes as consumers.
void AppendModule(Profile& profile, const Profile& module);

// Fills `profile.shared`: trained weights of one name that several nodes of a module hold, and
// those that `manifest` says several modules share.
void ShareWeights(Profile& profile, const Manifest& manifest);

}  // namespace pipewright
