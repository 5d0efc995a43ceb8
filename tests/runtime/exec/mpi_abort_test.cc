// Ends ranks, as the launch tests start them, and leaves a process without a launcher alone.
#include "runtime/transport/mpi_abort.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/process/launched_rank.h"
#include "tests/runtime/exec/mpi_main.h"

namespace pipewright {
namespace {

TEST(AbortQuietly, ReturnsInAProcessWithoutALauncher) {
  std::map<std::string, std::string> set;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(name)) set[name] = value, unsetenv(name);
  ASSERT_EQ(LaunchedRank(), -1);
  AbortQuietly(MPI_COMM_SELF, 3);
  for (const auto& [name, value] : set) setenv(name.c_str(), value.c_str(), 1);
}

// Started by the launch tests.
TEST(AbortQuietly, DISABLED_EndsEveryRank) {
  if (World().rank() == World().size() - 1) {
    AbortQuietly(MPI_COMM_WORLD, 7);
    std::puts("AbortQuietly returned");
  }
  while (true) World().AllGather("");
}

}  // namespace
}  // namespace pipewright
