// Operators that users wrote in C++.
#pragma once
#include <string>

namespace pipewright {

// Loads a shared library whose static initialisers register operators with LibTorch; once for each
// path. Throws Error when it cannot be loaded.
void LoadOpLibrary(const std::string& path);

}  // namespace pipewright
