#include "runtime/heap.h"

#include <malloc.h>

#include <climits>

namespace pipewright {

void KeepFreedMemory() {
#ifdef __GLIBC__
  // Older ones know a largest threshold.
  if (!mallopt(M_MMAP_THRESHOLD, INT_MAX)) mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace pipewright
