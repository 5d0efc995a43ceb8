// Checks that resident memory grows with the pages that are written, and shrinks without them.
#include "base/process/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace pipewright {
namespace {

// Writes one byte of each page. Sanitizers do not see it: their own memory would be counted too.
__attribute__((no_sanitize("address"), no_sanitize("thread"))) void Touch(volatile char* memory,
                                                                          int64_t size) {
  for (int64_t at = 0; at < size; at += 4096) memory[at] = 1;
}

// The memory is mapped, because sanitizers keep what is freed, and the heap may.
TEST(ProcessMemory, CountsPagesThatAreWritten) {
  constexpr int64_t kSize = 64 << 20;
  void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const int64_t mapped = ResidentBytes();
  ASSERT_GT(mapped, 0);
  EXPECT_EQ(mapped % sysconf(_SC_PAGESIZE), 0);
  Touch(static_cast<volatile char*>(memory), kSize);
  const int64_t written = ResidentBytes();
  EXPECT_GE(written - mapped, kSize * 9 / 10);
  EXPECT_LE(written - mapped, kSize * 3 / 2);
  ASSERT_EQ(munmap(memory, kSize), 0);
  EXPECT_LT(ResidentBytes() - mapped, kSize / 2);
}

}  // namespace
}  // namespace pipewright
