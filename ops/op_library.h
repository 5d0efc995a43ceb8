// Loads operators that users wrote in C++.
#pragma once
#include <string>

namespace pipewright {

// Loads a shared library whose static initializers register operators with LibTorch, once per path.
// Throws Error if it cannot be loaded.
void LoadOpLibrary(const std::string& path);

}  // namespace pipewright
