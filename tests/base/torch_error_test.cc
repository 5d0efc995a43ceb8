#include "base/torch_error.h"

#include <gtest/gtest.h>

namespace pipewright {

TEST(TorchError, KeepsWhatIsForPeople) {
  EXPECT_EQ(WithoutBacktrace("\nsizes do not match\nException raised from f at x.cpp:1\n#0 f\n"),
            "sizes do not match");
  EXPECT_EQ(WithoutBacktrace("can't allocate memory\nframe #0: f() + 0x6a (0x7f40)\nframe #1: g()\n"),
            "can't allocate memory");
  EXPECT_EQ(WithoutBacktrace("of __torch__.Module0 (of Python compilation unit at: 0x55d0) and on"),
            "of Module0 and on");
  EXPECT_EQ(WithoutBacktrace("/tmp/__torch__/a.pt: no such file"),
            "/tmp/__torch__/a.pt: no such file");
  EXPECT_EQ(WithoutBacktrace("\n\n"), "");
}

TEST(TorchError, TellsWhenMemoryIsOut) {
  EXPECT_TRUE(SaysOutOfMemory("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"));
  EXPECT_TRUE(SaysOutOfMemory(
      "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
      "you tried to allocate 4611686018427387904 bytes. Error code 12 (Cannot allocate memory)"));
  EXPECT_FALSE(SaysOutOfMemory("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"));
}

}  // namespace pipewright
