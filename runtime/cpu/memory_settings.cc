#include "runtime/cpu/memory_settings.h"

#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

// Defined by tcmalloc, if the program is linked with it.
extern "C" void MallocExtension_SetMemoryReleaseRate(double) __attribute__((weak));

namespace pipewright {

void KeepFreedMemory() {
  if (MallocExtension_SetMemoryReleaseRate) {
    MallocExtension_SetMemoryReleaseRate(0);
    return;
  }
#ifdef __GLIBC__
  // Older C libraries limit the threshold.
  if (!mallopt(M_MMAP_THRESHOLD, INT_MAX)) mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

// Drops only pages identical to the file; pages that were written to (a debugger's breakpoints) or
// moved stay.
static void DropCode() {
  std::ifstream maps("/proc/self/smaps");
  uintptr_t begin = 0, end = 0;
  for (std::string line; std::getline(maps, line);) {
    char access[8], path[512];
    unsigned long first, last, inode;
    if (std::sscanf(line.c_str(), "%lx-%lx %7s %*s %*s %lu %511s", &first, &last, access, &inode,
                    path) == 5) {
      const bool code = std::strcmp(access, "r-xp") == 0 && inode != 0 &&
                        std::strstr(path, "libtorch_cpu.so") != nullptr;
      begin = code ? first : 0, end = code ? last : 0;
    } else if (begin && line.rfind("Anonymous:", 0) == 0) {
      if (std::atol(line.c_str() + std::strlen("Anonymous:")) == 0)
        madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
      begin = 0;
    }
  }
}

static std::atomic<bool> own_process = false;

void DropStartUpCode() {
  own_process = true;
  DropCode();
}

void DropLoadingCode() {
  if (own_process) DropCode();
}

}  // namespace pipewright
