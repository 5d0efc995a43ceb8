#include "plan/partition/longest_paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

TEST(LongestPaths, OfAChain) {
  PartitionProblem problem;
  problem.nodes.resize(3);
  for (int i = 0; i < 3; ++i) {
    problem.nodes[i].device_time = 8;
    problem.nodes[i].forward_share = 0.25;
  }
  problem.values = {{0, {1}, 6, 2, 0}, {1, {2}, 5, 1, 0}};
  problem.devices.resize(1);
  problem.devices[0].speed = 2;
  problem.transfer_latency = 0.5;
  LongestPaths paths(problem, BuildUnits(problem, Merge::kNone), {"1f1b", 4}, 2);
  using Times = std::vector<double>;
  EXPECT_EQ(paths.own, (Times{4, 4, 4}));
  EXPECT_EQ(paths.until_gradient, (Times{4, 4, 4}));
  EXPECT_EQ(paths.to, (Times{0, 1, 2}));
  EXPECT_EQ(paths.to_alone, (Times{0, 1 + 3.5, 2 + 5.5}));
  EXPECT_EQ(paths.back, (Times{0, 3, 0}));  // no gradient comes back from the last node
  EXPECT_EQ(paths.back_alone, (Times{0, 3 + 3.5, 0}));
  EXPECT_EQ(paths.round, (Times{4, 8, 4}));
  ASSERT_EQ(paths.entries[1].size(), 1u);
  EXPECT_EQ(paths.entries[1][0].before, 0);
  EXPECT_EQ(paths.entries[1][0].time, 3.5);
  EXPECT_TRUE(paths.entries[1][0].gradient);
  EXPECT_FALSE(paths.entries[2][0].gradient);
}

// Walks every path that ends at each unit.
TEST(LongestPaths, AreTheLongestOfAllPaths) {
  for (const char* schedule : {"1f1b", "zb-h1"})
    for (unsigned seed = 0; seed < 100; ++seed) {
      std::mt19937 random(seed);
      PartitionProblem problem = RandomProblem(random, 7, 16);
      for (PartitionNode& node : problem.nodes) node.forward_share = 0.25 * (random() % 4);
      const double speed = 2, split = SplitsBackward(schedule) ? 0.5 : 1;
      UnitGraph graph = BuildUnits(problem, Merge::kNone);
      int n = static_cast<int>(graph.units.size());
      std::vector<double> forward, backward;
      std::map<std::pair<int, int>, bool> gradient;
      std::vector<int> unit_of(n);
      for (int u = 0; u < n; ++u) {
        const PartitionNode& node = problem.nodes[graph.units[u].nodes[0]];
        unit_of[graph.units[u].nodes[0]] = u;
        forward.push_back(node.device_time * node.forward_share / speed);
        backward.push_back(node.device_time * (1 - node.forward_share) * split / speed);
      }
      for (const PartitionValue& value : problem.values)
        for (int consumer : value.consumers)
          gradient[{unit_of[value.producer], unit_of[consumer]}] = value.transfers > 1;
      LongestPaths paths(problem, graph, {schedule, 4}, speed);
      for (int end = 0; end < n; ++end) {
        double to = 0, back = 0, round = forward[end] + backward[end];
        std::function<void(int, double, double, bool)> walk = [&](int at, double there, double home,
                                                                  bool returns) {
          to = std::max(to, there);
          if (returns) back = std::max(back, home);
          if (returns) round = std::max(round, there + home + forward[end] + backward[end]);
          for (int before : graph.previous[at])
            walk(before, there + forward[before], home + backward[before],
                 returns && gradient[{before, at}]);
        };
        walk(end, 0, 0, true);
        EXPECT_NEAR(paths.to[end], to, 1e-9) << seed;
        EXPECT_NEAR(paths.back[end], back, 1e-9) << seed;
        EXPECT_NEAR(paths.round[end], round, 1e-9) << seed;
      }
    }
}

TEST(LongestPaths, TakeTheFastestDevice) {
  PartitionProblem problem;
  problem.devices.resize(3);
  problem.devices[1].speed = 3;
  problem.devices[2].speed = 9;
  problem.devices[2].count = 0;
  EXPECT_EQ(FastestDevice(problem), 3);
  problem.devices[0].host = true;
  EXPECT_EQ(FastestDevice(problem), 0);
  problem.devices[0].count = 0;
  EXPECT_EQ(FastestDevice(problem), 3);
}

TEST(LongestPaths, SomeSchedulesSplitTheBackward) {
  EXPECT_FALSE(SplitsBackward("1f1b"));
  EXPECT_FALSE(SplitsBackward("gpipe"));
  EXPECT_TRUE(SplitsBackward("zb-h1"));
  EXPECT_TRUE(SplitsBackward("plan.json"));  // may be any
}

}  // namespace
}  // namespace pipewright
