#include "base/process/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace pipewright {

int64_t ResidentBytes() {
  // Opened once, and read at its beginning each time.
  static const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  char text[128];
  const ssize_t size = pread(file, text, sizeof text - 1, 0);
  if (size <= 0) return 0;
  text[size] = '\0';
  long long all = 0, resident = 0;
  if (std::sscanf(text, "%lld %lld", &all, &resident) != 2) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace pipewright
