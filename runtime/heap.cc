#include "runtime/heap.h"

#include <malloc.h>

#include <climits>

namespace pipewright {

void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, INT_MAX);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace pipewright
