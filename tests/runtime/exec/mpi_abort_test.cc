// Ends ranks, as the launch tests start them, and leaves a process without a launcher alone.
#include "runtime/transport/mpi_abort.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/process/launched_rank.h"
#include "tests/environment.h"
#include "tests/runtime/exec/mpi_main.h"

namespace pipewright {
namespace {

TEST(AbortQuietly, ReturnsInAProcessWithoutALauncher) {
  const Environment alone(kNoLauncher);
  ASSERT_EQ(LaunchedRank(), -1);
  AbortQuietly(MPI_COMM_SELF, 3);
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
