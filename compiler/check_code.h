// Compiles the code of packages for commands that know nothing of torch.
#pragma once
#include <string>

#include "plan/manifest.h"

namespace pipewright {

// Throws Error, with the text of a run, where a module whose code was edited does not compile. A
// build without torch cannot tell.
#ifdef PIPEWRIGHT_TORCH
void CheckCode(const std::string& package, const Manifest& manifest);
#else
inline void CheckCode(const std::string&, const Manifest&) {}
#endif

}  // namespace pipewright
