#include "runtime/process_memory.h"

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

namespace pipewright {

void KeepFreedMemory() {
#ifdef __GLIBC__
  // Older ones know a largest threshold.
  if (!mallopt(M_MMAP_THRESHOLD, INT_MAX)) mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

static bool Traced() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("TracerPid:", 0) == 0) return line.find_first_of("123456789") != line.npos;
  return true;
}

static int DropCode(dl_phdr_info* library, size_t, void*) {
  if (!std::strstr(library->dlpi_name, "libtorch_cpu.so")) return 0;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || segment.p_flags != (PF_R | PF_X)) continue;  // as in the file
    const uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
    const uintptr_t first = (begin + page - 1) / page * page;
    const uintptr_t last = (begin + segment.p_memsz) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
  return 1;
}

void DropStartUpCode() {
  if (!Traced()) dl_iterate_phdr(DropCode, nullptr);
}

}  // namespace pipewright
