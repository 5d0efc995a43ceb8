// A profile for people.
#pragma once
#include <string>

#include "formats/profile/profile.h"

namespace pipewright {

// A line a node: times in ms with their spread, bytes sent, kept and held; then the links.
std::string ProfileTable(const Profile& profile);

}  // namespace pipewright
