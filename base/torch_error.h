// Makes messages of torch's exceptions readable.
#pragma once
#include <string>

namespace pipewright {

// Returns the `what` of a torch exception without torch's C++ backtrace, addresses, the package
// prefix of TorchScript's names, and surrounding empty lines.
std::string WithoutBacktrace(const std::string& what);

// Returns true if an exception of torch with this `what` says that there is no memory left: on the
// host or a device. Modules throw it as a plain exception, in which only the text tells.
bool SaysOutOfMemory(const std::string& what);

}  // namespace pipewright
