// What would be enough, checked by searches; and what would help, against problems where it is
// known.
#include "plan/tune/needs.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TuneMachines Devices(int count, double memory) {
  TuneMachines machines;
  machines.speeds.assign(static_cast<size_t>(count), 1);
  machines.memory.assign(static_cast<size_t>(count), memory);
  for (int device = 0; device < count; ++device) machines.machine.push_back(device);
  machines.between.bytes_per_second = 1e9;
  machines.within.assign(static_cast<size_t>(count), machines.between);
  return machines;
}

// A larger limit does not help if the devices have no more.
TEST(TuneNeeds, NothingFitsOnTheDevices) {
  TuneProblem problem = Weighty(4);
  problem.machines = Devices(2, 1e6);
  for (double limit : {kNoLimit, 1e5}) {
    problem.memory = limit;
    const TuneNeeds needs = FindNeeds(problem);
    EXPECT_TRUE(needs.of_devices);
    EXPECT_EQ(needs.ranks, 0) << "there are no more devices";
    EXPECT_GE(needs.memory, 2 * 2e8) << "weights and gradients of half of the modules";
    TuneProblem enough = problem;
    enough.memory = kNoLimit;
    enough.machines = Devices(2, needs.memory);
    EXPECT_FALSE(SearchTune(enough, 1).best.empty());
    EXPECT_TRUE(AnyFits(enough));
    enough.machines = Devices(2, needs.memory / 1.011);
    EXPECT_TRUE(SearchTune(enough, 1).best.empty());
    EXPECT_FALSE(AnyFits(enough));
  }
}

// The machines have more devices than ranks were asked for.
TEST(TuneNeeds, TheFewestRanksOfTheDevices) {
  TuneProblem problem = Weighty(12);
  problem.machines = Devices(8, 2 * 2e8 + 5e7);
  EXPECT_EQ(MostRanks(problem), 8);
  EXPECT_EQ(FindNeeds(problem).ranks, 6);
  problem.machines = Devices(5, 2 * 2e8 + 5e7);
  EXPECT_EQ(FindNeeds(problem).ranks, 0);
}

TEST(TuneHelp, HalvesTheSlowestModule) {
  TuneProblem problem = ProblemOf({1e-3, 1e-3, 6e-3}, 64);
  problem.profiles[1].checks = {1, 2, 6};
  const TuneProblem cut = CutModule(problem, 2);
  ASSERT_EQ(cut.manifest.modules.size(), 4u);
  const std::vector<ProfileNode>& nodes = cut.profiles[0].profile.nodes;
  EXPECT_DOUBLE_EQ(nodes[2].forward.median,
                   problem.profiles[0].profile.nodes[2].forward.median / 2);
  EXPECT_EQ(nodes[3].module, 3);
  EXPECT_EQ(cut.profiles[1].checks, (std::vector<double>{1, 2, 3, 3}));
  EXPECT_EQ(cut.manifest.values.back().consumers, std::vector<int>{3});
  problem.replicas = false;
  const TuneCandidate best = SearchTune(problem, 1).best.at(0);
  const std::vector<TuneHelp> help = WhatHelps(problem, best, best.step);
  ASSERT_FALSE(help.empty());
  EXPECT_EQ(help[0].change, "a finer cut around module2, the slowest module");
  EXPECT_LT(help[0].step, 0.8 * best.step);
  EXPECT_GT(help[0].step, 0.5 * best.step);
}

// Links so slow that one rank is faster than two.
TEST(TuneHelp, FasterLinksMayMakeMoreRanksPay) {
  TuneProblem problem = ProblemOf(std::vector<double>(8, 1e-3), 16);
  const double alone = SearchTune(problem, 1'000'000).by_kind.at({1, false}).step;
  for (TuneProfile& one : problem.profiles)
    for (int from = 0; from < one.ranks; ++from)
      for (int to = 0; to < one.ranks; ++to)
        if (from != to) one.profile.links.push_back({from, to, 0.3 * alone, 1e9, 0});
  const TuneCandidate best = SearchTune(problem, 1).best.at(0);
  ASSERT_EQ(best.ranks, 1);
  const auto with_links = [&](double shortest) {
    for (const TuneHelp& each : WhatHelps(problem, best, shortest))
      if (each.change == "links twice as fast") return each.step;
    return 0.0;
  };
  TuneProblem twice = problem;
  for (TuneProfile& one : twice.profiles)
    for (ProfileLink& link : one.profile.links) link.latency /= 2, link.bytes_per_second *= 2;
  const TuneCandidate faster = SearchTune(twice, 1).best.at(0);
  EXPECT_GT(faster.ranks, 1);
  EXPECT_LT(faster.step, 0.95 * best.step);
  EXPECT_DOUBLE_EQ(with_links(best.step), faster.step);
  // If another candidate was predicted to take as long already, links gain nothing.
  EXPECT_DOUBLE_EQ(with_links(faster.step), best.step);
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
  const std::vector<TuneHelp> help = WhatHelps(problem, slow, slow.step);
  EXPECT_EQ(help.at(0).change, "links twice as fast");
  EXPECT_NEAR(help.at(0).step / slow.step, 0.5, 0.1);
  int forwards = 0;
  for (const TraceAction& action : TimelineOf(problem, slow))
    forwards += action.action.kind == ActionKind::kForward;
  EXPECT_EQ(forwards, 4 * 4);
}

}  // namespace
}  // namespace pipewright
