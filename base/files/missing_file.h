// Writes the errors about missing files.
#pragma once
#include <string>

#include "base/error.h"

namespace pipewright {

// Returns why `path` could not be opened, from errno. If it does not exist, says which part is
// missing and suggests the nearest name.
Error Unreadable(const std::string& path);

// Returns the path of `file`, which the manifest of `package` names. Throws Error if it does not
// exist.
std::string PackageFile(const std::string& package, const std::string& file);

}  // namespace pipewright
