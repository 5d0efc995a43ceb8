// Reads the limits of control groups from files like the kernel's.
#include "base/process/host_resources.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string File(const std::string& name, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(TempPath(name)).parent_path());
  std::ofstream(TempPath(name)) << text;
  return TempPath(name);
}

TEST(HostResources, TheLeastLimitOfAllGroups) {
  const std::string groups = File("groups", "4:memory:/old\n0::/jobs/mine\n"),
                    root = TempPath("cgroup");
  EXPECT_TRUE(std::isinf(GroupLimit("memory.max", groups, root))) << "no files";
  File("cgroup/jobs/mine/memory.max", "max\n");
  EXPECT_TRUE(std::isinf(GroupLimit("memory.max", groups, root)));
  File("cgroup/jobs/memory.max", "8589934592\n");
  EXPECT_EQ(GroupLimit("memory.max", groups, root), 8589934592.0);
  File("cgroup/memory.max", "1000\n");
  EXPECT_EQ(GroupLimit("memory.max", groups, root), 1000);
  File("cgroup/jobs/mine/cpu.max", "150000 100000\n");
  File("cgroup/jobs/cpu.max", "max 100000\n");
  EXPECT_EQ(GroupLimit("cpu.max", groups, root), 1.5);
  EXPECT_TRUE(std::isinf(GroupLimit("cpu.max", File("version1", "4:memory:/a\n"), root)));
  EXPECT_EQ(GroupLimit("memory.max", File("container", "0::/\n"), root), 1000);
}

TEST(HostResources, OnlyOwnCoresAreBusy) {
  const std::string stat =
      "cpu  1100 0 220 5000 7 3 30 40 0 0\n"
      "cpu0 100 0 20 2500 3 1 10 15 0 0\n"
      "cpu1 1000 0 200 2500 4 2 20 25 0 0\n"
      "intr 99 1 2 3\n";
  EXPECT_EQ(BusyTicks(stat, {0}), 146);
  EXPECT_EQ(BusyTicks(stat, {0, 1}), 1393);
  EXPECT_EQ(BusyTicks(stat, {7}), 1393) << "a container may number its cores anew";
  EXPECT_EQ(BusyTicks("", {0}), 0);
}

TEST(HostResources, ThisHost) {
  EXPECT_GE(CoresHere(), 1);
  EXPECT_GT(MemoryHere(), 1 << 20);
  EXPECT_GT(BusySeconds(), 0);
}

}  // namespace
}  // namespace pipewright
