// Checks which variables of the environment give a process its rank, and which it can forget.
#include "base/process/launched_rank.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>

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

TEST(LaunchedRank, ForgetsWhatMpirunGave) {
  cpu_set_t before, one, after;
  CPU_ZERO(&one);
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  Environment users(
      Environment::Variables{{"OMPI_MCA_btl", "tcp,self"},
                             {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                             {"SLURM_PROCID", nullptr},
                             {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"}});
  {
    Environment unbound(Environment::Variables{{"OMPI_MCA_orte_bound_at_launch", nullptr},
                                               {"OMPI_COMM_WORLD_SIZE", "2"}});
    ForgetMpirun();
    EXPECT_EQ(LaunchedRanks(), 0);
    sched_getaffinity(0, sizeof after, &after);
    EXPECT_EQ(CPU_COUNT(&after), 1) << "the user chose this core";
  }
  Environment launched(Environment::Variables{{"OMPI_MCA_orte_bound_at_launch", "1"},
                                              {"OMPI_COMM_WORLD_RANK", "0"},
                                              {"OMPI_COMM_WORLD_SIZE", "2"},
                                              {"OMPI_UNIVERSE_SIZE", "2"},
                                              {"PMIX_RANK", "0"},
                                              {"PRTE_LAUNCHED", "1"},
                                              {"OMPI_MCA_num_procs", "2"},
                                              {"PMIX_SERVER_URI4", "host;tcp4://127.0.0.1:1"}});
  ForgetMpirun();
  EXPECT_EQ(LaunchedRanks(), 0);
  EXPECT_EQ(LaunchedRank(), -1);
  for (const char* name : {"OMPI_MCA_orte_bound_at_launch", "OMPI_UNIVERSE_SIZE",
                           "PMIX_SERVER_URI4", "PRTE_LAUNCHED", "OMPI_MCA_num_procs"})
    EXPECT_EQ(std::getenv(name), nullptr) << name;
  EXPECT_STREQ(std::getenv("OMPI_MCA_btl"), "tcp,self");
  EXPECT_STREQ(std::getenv("OMPI_ALLOW_RUN_AS_ROOT"), "1");
  EXPECT_STREQ(std::getenv("PRTE_MCA_rmaps_default_mapping_policy"), ":oversubscribe");
  sched_getaffinity(0, sizeof after, &after);
  EXPECT_GE(CPU_COUNT(&after), CPU_COUNT(&before));
  sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace pipewright
