// Loads operators that users wrote in C++.
#pragma once
#include <string>

namespace pipewright {

// Loads a shared library whose static initializers register operators with LibTorch, once per path.
// Returns the path of the loaded file: a name without a folder is searched for where the system
// loads libraries from. Throws Error if it cannot be loaded.
std::string LoadOpLibrary(const std::string& path);

}  // namespace pipewright
