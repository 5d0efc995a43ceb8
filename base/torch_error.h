// Makes messages of torch's exceptions readable.
#pragma once
#include <string>

namespace pipewright {

// Returns the `what` of a torch exception without torch's C++ backtrace, addresses, the package
// prefix of TorchScript's names, and surrounding empty lines.
std::string WithoutBacktrace(const std::string& what);

}  // namespace pipewright
