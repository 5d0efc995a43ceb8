// Checks the edited code of packages, for commands that do not include torch.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

// Throws Error, with the same text as a run, if a module with edited code does not compile, or if
// it, or a module that takes other sizes from it, does not run on zeros in the sizes of the example
// that the model was exported with. Returns warnings, see ChangedOutputs in
// runtime/trial/shapes.h. A build without torch cannot check this.
#ifdef PIPEWRIGHT_TORCH
std::vector<std::string> CheckCode(const std::string& package, const Manifest& manifest);
#else
inline std::vector<std::string> CheckCode(const std::string&, const Manifest&) { return {}; }
#endif

}  // namespace pipewright
