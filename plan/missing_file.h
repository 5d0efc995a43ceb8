// Errors of files that are not there.
#pragma once
#include <string>

#include "plan/error.h"

namespace pipewright {

// Why `path` could not be opened, from errno. Where it is not there: which part of it, and the
// nearest name in its place.
Error Unreadable(const std::string& path);

// The path of `file`, which the manifest of `package` names. Throws Error where it is not there.
std::string PackageFile(const std::string& package, const std::string& file);

}  // namespace pipewright
