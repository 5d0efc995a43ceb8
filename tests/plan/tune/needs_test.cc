// What would be enough, checked by searches; and what would help, against problems where it is
// known.
#include "plan/tune/needs.h"

#include <gtest/gtest.h>

#include "plan/tune/help.h"
#include "plan/tune/search.h"
#include "tests/plan/tune/chain.h"

namespace pipewright {
namespace {

TuneProblem Weighty(int modules) {
  TuneProblem problem = ProblemOf(std::vector<double>(static_cast<size_t>(modules), 1e-3), 4);
  for (TuneProfile& profile : problem.profiles)
    for (ProfileNode& node : profile.profile.nodes) node.parameters = node.trained = 1e8;
  std::erase_if(problem.profiles, [](const TuneProfile& profile) { return profile.ranks > 2; });
  return problem;
}

bool FitsIn(TuneProblem problem, double memory) {
  problem.memory = memory;
  return !SearchTune(problem, 1).best.empty();
}

TEST(TuneNeeds, TheLeastMemory) {
  TuneProblem problem = Weighty(8);
  problem.memory = 1e8;
  const TuneNeeds needs = FindNeeds(problem);
  EXPECT_TRUE(FitsIn(problem, needs.memory));
  EXPECT_FALSE(FitsIn(problem, needs.memory / 1.011));
  EXPECT_GE(needs.memory, 4 * 2e8) << "weights and gradients of half of the modules";
}

// A rank needs 2e8 bytes for each module.
TEST(TuneNeeds, TheFewestRanks) {
  TuneProblem problem = Weighty(12);
  problem.memory = 2 * 2e8 + 5e7;
  EXPECT_EQ(FindNeeds(problem).ranks, 6);
  problem.memory = 1e8;
  EXPECT_EQ(FindNeeds(problem).ranks, 0) << "less than one module";
}

// A larger limit does not help if the devices have no more.
TEST(TuneNeeds, NothingFitsOnTheDevices) {
  TuneProblem problem = Weighty(4);
  problem.machines.memory = {1e6, 1e6};
  EXPECT_EQ(FindNeeds(problem).memory, 0);
  problem.memory = 1e5;
  EXPECT_EQ(FindNeeds(problem).memory, 0);
}

TEST(TuneHelp, HalvesTheSlowestModule) {
  TuneProblem problem = ProblemOf({1e-3, 1e-3, 6e-3}, 64);
  const TuneProblem cut = CutModule(problem, 2);
  ASSERT_EQ(cut.manifest.modules.size(), 4u);
  const std::vector<ProfileNode>& nodes = cut.profiles[0].profile.nodes;
  EXPECT_DOUBLE_EQ(nodes[2].forward.median,
                   problem.profiles[0].profile.nodes[2].forward.median / 2);
  EXPECT_EQ(nodes[3].module, 3);
  EXPECT_EQ(cut.manifest.values.back().consumers, std::vector<int>{3});
  problem.replicas = false;
  const TuneCandidate best = SearchTune(problem, 1).best.at(0);
  const std::vector<TuneHelp> help = WhatHelps(problem, best);
  ASSERT_FALSE(help.empty());
  EXPECT_EQ(help[0].change, "a finer cut around module2, the slowest module");
  EXPECT_LT(help[0].step, 0.8 * best.step);
  EXPECT_GT(help[0].step, 0.5 * best.step);
}

TEST(TuneHelp, KnowsWhatBinds) {
  TuneProblem problem = ProblemOf(std::vector<double>(4, 1e-3), 64);
  TuneCandidate one = SearchTune(problem, 1'000'000).best.at(0);
  EXPECT_EQ(WhatBinds(problem, one), "compute");
  problem.replicas = false;
  std::erase_if(problem.profiles, [](const TuneProfile& profile) {
    return profile.ranks != 4 || profile.profile.microbatch != 16;
  });
  EXPECT_EQ(WhatBinds(problem, SearchTune(problem, 1).best.at(0)), "order")
      << "four microbatches on four ranks";
  for (int from = 0; from < 4; ++from)
    for (int to = 0; to < 4; ++to)
      if (from != to) problem.profiles[0].profile.links.push_back({from, to, 1, 1e9, 0});
  const TuneCandidate slow = SearchTune(problem, 1).best.at(0);
  EXPECT_EQ(WhatBinds(problem, slow), "links");
  const std::vector<TuneHelp> help = WhatHelps(problem, slow);
  EXPECT_EQ(help.at(0).change, "links twice as fast");
  EXPECT_NEAR(help.at(0).step / slow.step, 0.5, 0.1);
  int forwards = 0;
  for (const TraceAction& action : TimelineOf(problem, slow))
    forwards += action.action.kind == ActionKind::kForward;
  EXPECT_EQ(forwards, 4 * 4);
}

}  // namespace
}  // namespace pipewright
