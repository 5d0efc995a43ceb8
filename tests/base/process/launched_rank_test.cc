// Checks which variables of the environment give a process its rank.
#include "base/process/launched_rank.h"

#include <gtest/gtest.h>

#include "tests/environment.h"

namespace pipewright {
namespace {

TEST(LaunchedRank, IsThatOfMpirunOrSrun) {
  Environment alone(kNoLauncher);
  EXPECT_EQ(LaunchedRank(), -1);
  for (const auto& [variable, unset] : kNoLauncher) {
    Environment launched(Environment::Variables{{variable, "7"}});
    EXPECT_EQ(LaunchedRank(), 7) << variable;
  }
  Environment both(Environment::Variables{{"OMPI_COMM_WORLD_RANK", "2"}, {"SLURM_PROCID", "3"}});
  EXPECT_EQ(LaunchedRank(), 2) << "srun may start mpirun";
}

}  // namespace
}  // namespace pipewright
