// Explains SIGBUS on mapped files: pages that can no longer be read, because the file was truncated
// or its disk fails, raise a signal that by itself does not name the file.
#pragma once
#include <cstdint>

namespace pipewright {

// Registers [begin, begin + size): if an access to it kills the process, the last message names the
// file. Must be unregistered before it is unmapped; `path` must live until then. Holds at most 256
// ranges.
void RememberPages(const char* begin, uint64_t size, const char* path);
void ForgetPages(const char* begin);

}  // namespace pipewright
