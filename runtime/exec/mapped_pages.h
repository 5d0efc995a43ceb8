// Mapped pages of a file that cannot be had any more, since it was made shorter or its disk fails:
// whoever touches one gets SIGBUS, which by itself does not say of what.
#pragma once
#include <cstdint>

namespace pipewright {

// Should touching [begin, begin + size) end the process, the last message names the file. To be
// forgotten before it is unmapped; `path` lives until then. At most 256 at once are known.
void RememberPages(const char* begin, uint64_t size, const char* path);
void ForgetPages(const char* begin);

}  // namespace pipewright
