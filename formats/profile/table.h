// Formats a profile for people to read.
#pragma once
#include <string>

#include "formats/profile/profile.h"

namespace pipewright {

// Returns a line for each node, with times in ms and their spread, and bytes sent, kept and held;
// then the links.
std::string ProfileTable(const Profile& profile);

}  // namespace pipewright
