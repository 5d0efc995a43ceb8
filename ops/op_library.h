// Loads operators that users wrote in C++.
#pragma once
#include <string>

namespace pipewright {

// Loads a shared library whose static initializers register operators with LibTorch, once per path.
// Returns the file that was found: a name without a folder is looked for where the system does.
// Throws Error if it cannot be loaded.
std::string LoadOpLibrary(const std::string& path);

}  // namespace pipewright
