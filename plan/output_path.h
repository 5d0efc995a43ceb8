// What names of output files lead to.
#pragma once
#include <string>

namespace pipewright {

// What is written to as it is, never replaced: what this process has open (/dev/stdout), a pipe, a
// device. Nothing lies beside it.
bool IsStream(const std::string& path);
bool IsStandardOutput(const std::string& path);

}  // namespace pipewright
