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

}  // namespace pipewright
