// Runs of modules in one stage become modules.
#include "tune/regroup.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

TEST(TuneRegroup, RunsBecomeModules) {
  Conf conf;
  conf.module_to_stage = {0, 0, 1, 1, 1, 0, 2};
  conf.stage_to_ranks = {{0}, {1}, {0, 1}};
  EXPECT_EQ(StartsOfRuns(conf), (std::vector<int>{2, 5, 6}));
  EXPECT_EQ(ConfOfRuns(conf).module_to_stage, (std::vector<int>{0, 1, 0, 2}));
  EXPECT_EQ(ConfOfRuns(conf).stage_to_ranks, conf.stage_to_ranks);
  conf.module_to_stage = {0, 0, 0};
  EXPECT_TRUE(StartsOfRuns(conf).empty());
  EXPECT_EQ(ConfOfRuns(conf).module_to_stage, std::vector<int>{0});
}

}  // namespace
}  // namespace pipewright
