#include "plan/partition/problem/stage_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "plan/partition/problem/partition_state.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

TEST(StageSums, AddComputeTransfersAndTheExchange) {
  PartitionProblem problem;
  problem.devices.resize(2);
  problem.devices[0].speed = 2, problem.devices[0].link = 4;
  problem.devices[1].host = true;
  problem.transfer_latency = 0.5;
  problem.exchange_time = 0.25;
  StageSums sums;
  sums.device_time = 10, sums.host_time = 30, sums.parameter_bytes = 8;
  sums.cut_time = 12, sums.cut_transfers = 4;
  EXPECT_EQ(sums.Load(problem, {0, 1}, 0), 5 + 3 + 2);
  EXPECT_EQ(sums.Load(problem, {0, 2}, 0), 5 + 8 * 0.25 / 4);
  EXPECT_EQ(sums.Load(problem, {1, 1}, 0), 30);
  sums.entering_time = 8;
  EXPECT_EQ(sums.Load(problem, {0, 1, 0, 2, 1, 1}, 0), 5 + (4 + 4) + 2);
  sums.not_on_device = 1;
  EXPECT_EQ(sums.Load(problem, {0, 1}, 0), kInfinity);
  EXPECT_EQ(sums.Load(problem, {1, 1}, 0), 30);
}

TEST(StageSums, NeedMoreMemoryTheMoreDevicesFollow) {
  PartitionProblem problem;
  problem.devices.resize(1);
  problem.devices[0].memory_bytes = 16;
  problem.in_flight = InFlight::k1F1B;
  StageSums sums;
  sums.static_bytes = 3, sums.stash_bytes = 4, sums.cut_bytes = 1, sums.device_time = 1;
  EXPECT_EQ(sums.Load(problem, {0, 1}, 2), 1);  // 3 + 3 * 4 + 1 fits exactly
  EXPECT_EQ(sums.Load(problem, {0, 1}, 3), kInfinity);
}

// The reference evaluates whole partitions; here units come and go one at a time.
TEST(StageLoad, AgreesWithTheReference) {
  int limited = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = RandomProblem(random, 8, static_cast<int>(random() % 256) & ~2);
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    int n = static_cast<int>(graph.units.size()), stages = std::min(n, 3);
    PartitionState state;
    for (int s = 0; s < stages; ++s) state.options.push_back({0, 1 + static_cast<int>(seed % 2)});
    for (int u = 0; u < n; ++u) state.stage_of.push_back(u * stages / n);
    PartitionResult result = ResultOfStages(problem, graph, state);
    StageLoad load(problem, graph);
    int devices_after = stages * state.options[0].replicas;
    for (int s = 0; s < stages; ++s) {
      devices_after -= state.options[s].replicas;
      for (int u = 0; u < n; ++u) load.Add(u);
      for (int u = 0; u < n; ++u)
        if (state.stage_of[u] != s) load.Remove(u);
      const PartitionStage& stage = result.stages[s];
      bool fits = stage.memory_bytes <= problem.devices[0].memory_bytes;
      limited += !fits;
      double value = load.Load(state.options[s], devices_after);
      EXPECT_EQ(value < kInfinity, fits) << seed;
      if (fits) {
        EXPECT_NEAR(value, stage.Load(), 1e-9) << seed;
      }
      for (int u = 0; u < n; ++u)
        if (state.stage_of[u] == s) load.Remove(u);
      EXPECT_TRUE(std::all_of(load.inside.begin(), load.inside.end(),
                              [](int inside) { return inside == 0; }));
      EXPECT_NEAR(load.device_time + load.cut_time + load.stash_bytes, 0, 1e-9) << seed;
      load.Reset();
    }
  }
  EXPECT_GT(limited, 10);
}

TEST(Resources, CountTheDevicesOfEachState) {
  PartitionProblem problem;
  problem.devices.resize(2);
  problem.devices[0].count = 2;
  problem.devices[1].speed = 3;
  EXPECT_EQ(DeviceStates(problem), 6);
  Resources resources(problem);
  ASSERT_EQ(resources.states, 6);
  EXPECT_EQ(resources.devices, 3);
  EXPECT_EQ(resources.options.size(), 2u);
  for (int s = 0; s < 6; ++s) {
    int first = resources.in_use[2 * s], second = resources.in_use[2 * s + 1];
    EXPECT_EQ(resources.used[s], first + second);
    EXPECT_EQ(resources.speed[s], first + 3 * second);
    EXPECT_EQ(resources.speed_left[s], 5 - first - 3 * second);
    EXPECT_EQ(resources.most_left[s], 3 - first - second);
    EXPECT_EQ(resources.MostLeft(problem, s, {10, 1}), 10 * (2 - first) + (1 - second));
    EXPECT_EQ(static_cast<bool>(resources.final[s]), s > 0);
  }
  for (size_t o = 0; o < 2; ++o) {
    EXPECT_EQ(resources.steps[o].size(), o == 0 ? 4u : 3u);
    size_t c = static_cast<size_t>(resources.options[o].device_class);
    for (const Resources::Step& step : resources.steps[o]) {
      EXPECT_EQ(resources.in_use[2 * step.to + c], resources.in_use[2 * step.from + c] + 1);
      EXPECT_EQ(resources.used[step.to], resources.used[step.from] + 1);
      EXPECT_EQ(step.devices_after, resources.used[step.from]);
    }
  }
}

TEST(Resources, OfASequenceHaveTheLinksToTheAdjacentDevices) {
  PartitionProblem problem;
  problem.devices.resize(1);
  problem.devices[0].count = 3;
  problem.pair_links = {{1, 2, 4}, {3, 1, 5}, {4, 7, 1}};
  Resources resources(problem, {{0, 2}, {0, 0}, {0, 1}});
  ASSERT_EQ(resources.options.size(), 3u);
  const StageOption& middle = resources.options[1];
  EXPECT_EQ(middle.first, 1);
  EXPECT_EQ(middle.link_in, 4);
  EXPECT_EQ(middle.link_out, 2);  // the slower direction
  EXPECT_EQ(resources.steps[1].size(), 1u);
  EXPECT_EQ(resources.steps[1][0].from, 1);
  EXPECT_EQ(resources.steps[1][0].to, 2);
}

TEST(Resources, RefuseTooManyStates) {
  PartitionProblem problem;
  problem.devices.resize(40);
  EXPECT_EQ(DeviceStates(problem), INT32_MAX);
  EXPECT_THROW(Resources{problem}, Error);
}

}  // namespace
}  // namespace pipewright
