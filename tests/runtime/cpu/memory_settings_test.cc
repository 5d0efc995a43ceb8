#include "runtime/cpu/memory_settings.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace pipewright {

// Returns the resident kilobytes of LibTorch's code.
static int64_t ResidentCode() {
  std::ifstream maps("/proc/self/smaps");
  bool code = false;
  int64_t total = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("-") < line.find(":"))  // the first line of a mapping: its addresses
      code = line.find(" r-xp ") != line.npos && line.find("libtorch_cpu.so") != line.npos;
    if (code && line.rfind("Rss:", 0) == 0) total += std::stoll(line.substr(4));
  }
  return total;
}

TEST(ProcessMemory, CodeOfStartingUpIsLetGo) {
  const int64_t before = ResidentCode();
  if (before == 0) GTEST_SKIP() << "LibTorch's code is not a library of its own";
  DropLoadingCode();
  EXPECT_EQ(ResidentCode(), before) << "nobody said that the process is the program's own";
  DropStartUpCode();
  EXPECT_LT(ResidentCode(), before / 4) << "of " << before;
  EXPECT_EQ(at::ones({3}).sum().item<float>(), 3);  // code that runs again is loaded again
  const int64_t after = ResidentCode();
  DropLoadingCode();
  EXPECT_LT(ResidentCode(), after);
}

}  // namespace pipewright
