#include "plan/partition/fast/unequal_devices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "plan/partition/link_loads.h"
#include "plan/partition/solve.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

double Number(std::mt19937& random, double low, double high) {
  return std::uniform_real_distribution<>(low, high)(random);
}

// Each node uses one or two nodes shortly before it.
PartitionProblem Graph(std::mt19937& random, int nodes, double dear) {
  PartitionProblem problem;
  for (int i = 0; i < nodes; ++i) {
    PartitionNode node;
    node.name = std::to_string(i);
    node.device_time = Number(random, 1, 3);
    problem.nodes.push_back(node);
    problem.values.push_back({i, {}, Number(random, 0, dear), 2, 0});
    for (int k = 0; k < 2 && i > 0; ++k) {
      int from = std::max(0, i - 1 - static_cast<int>(random() % 6));
      auto& consumers = problem.values[from].consumers;
      if (std::find(consumers.begin(), consumers.end(), i) == consumers.end())
        consumers.push_back(i);
    }
  }
  std::erase_if(problem.values,
                [](const PartitionValue& value) { return value.consumers.empty(); });
  return problem;
}

void AddDevices(std::mt19937& random, int devices, PartitionProblem& problem) {
  for (int d = 0; d < devices; ++d) {
    DeviceClass device;
    device.speed = Number(random, 1, 2);
    device.link = Number(random, 0.5, 1);
    device.numbers = {d};
    problem.devices.push_back(device);
  }
}

TEST(Uneven, SmallOnesAreSettled) {
  std::mt19937 random(5);
  for (int i = 0; i < 6; ++i) {
    PartitionProblem problem = Graph(random, 10, 2);
    AddDevices(random, 8, problem);
    if (i % 2) problem.stages = 3;
    PartitionResult fast = SolvePartition(problem, {false}), exact = SolvePartition(problem, {});
    EXPECT_TRUE(fast.proven);
    EXPECT_TRUE(exact.proven);
    EXPECT_EQ(CheckPartition(problem, fast), "");
    EXPECT_NEAR(fast.objective, exact.objective, 1e-9 * exact.objective);
  }
}

// With more devices than nodes, only the best devices matter.
TEST(Uneven, DevicesThatNoStageNeeds) {
  std::mt19937 random(9);
  PartitionProblem problem = Graph(random, 9, 1);
  for (int d = 0; d < 40; ++d) {
    DeviceClass device;
    device.speed = 1 + 0.05 * d;
    device.numbers = {d};
    problem.devices.push_back(device);
  }
  PartitionResult all = SolvePartition(problem, {});
  EXPECT_TRUE(all.proven);
  EXPECT_EQ(CheckPartition(problem, all), "");
  problem.devices.erase(problem.devices.begin(), problem.devices.end() - 9);
  EXPECT_NEAR(SolvePartition(problem, {}).objective, all.objective, 1e-12);
  problem.devices = {DeviceClass()};
  problem.devices[0].count = 1'000'000;
  EXPECT_TRUE(SolvePartition(problem, {}).proven);
}

// So many kinds of devices that their sets would not fit in memory.
TEST(Uneven, EachDeviceOfItsOwnKind) {
  std::mt19937 random(6);
  PartitionProblem problem = Graph(random, 150, 0.05);
  AddDevices(random, 24, problem);
  double work = 0, speeds = 0;
  for (const PartitionNode& node : problem.nodes) work += node.device_time;
  for (const DeviceClass& device : problem.devices) speeds += device.speed;
  PartitionResult result = SolvePartition(problem, {false});
  EXPECT_EQ(CheckPartition(problem, result), "");
  EXPECT_LE(result.objective, work / speeds * 1.08);
  EXPECT_LE(result.lower_bound, result.objective);

  problem.stages = 6;
  for (DeviceClass& device : problem.devices) device.memory_bytes = Number(random, 30, 50);
  for (PartitionNode& node : problem.nodes) node.static_bytes = 1;
  result = SolvePartition(problem, {});
  EXPECT_EQ(CheckPartition(problem, result), "");
  EXPECT_EQ(result.stages.size(), 6u);
  Explanation why = ExplainPartition(problem, result, {false});
  EXPECT_GT(why.next_best, result.objective * (1 - 1e-9));
  EXPECT_LT(why.next_best, 2 * result.objective);

  problem.devices.clear();
  AddDevices(random, 24, problem);
  problem.stages = -1;
  problem.max_replicas = 2;
  result = SolvePartition(problem, {false});
  EXPECT_EQ(CheckPartition(problem, result), "");
  EXPECT_LE(result.objective, work / speeds * 1.3);
}

TEST(Uneven, StagesGetTheDevicesThatSuitThem) {
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) {
    PartitionProblem problem = Graph(random, 5, 4);
    AddDevices(random, 5, problem);
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    PartitionState units;
    std::vector<int> order(5);
    std::iota(order.begin(), order.end(), 0);
    units.stage_of = order;
    for (int s = 0; s < 5; ++s) units.options.push_back({s, 1});
    double least = kInfinity;
    do {
      for (int s = 0; s < 5; ++s) units.options[s].device_class = order[s];
      least = std::min(least, ResultOfStages(problem, graph, units).objective);
    } while (std::next_permutation(order.begin(), order.end()));
    ASSERT_TRUE(AssignDevices(problem, graph, kInfinity, units));
    EXPECT_NEAR(ResultOfStages(problem, graph, units).objective, least, 1e-9 * least);
    EXPECT_FALSE(AssignDevices(problem, graph, least * (1 - 1e-9), units));
  }
}

TEST(Uneven, LinksOfEachPair) {
  std::mt19937 random(8);
  for (int i = 0; i < 2; ++i) {
    const int devices = 20;
    PartitionProblem problem = Graph(random, i == 0 ? 60 : 300, 0.2);
    AddDevices(random, devices, problem);
    problem.pair_links.assign(devices, std::vector<double>(devices, 1));
    for (int a = 0; a < devices; ++a) {
      problem.devices[a].speed = 1;
      problem.devices[a].link = 0;
      for (int b = 0; b < devices; ++b)
        if (a != b) problem.pair_links[a][b] = Number(random, 0.2, 1);
    }
    for (int a = 0; a < devices; ++a)
      for (int b = 0; b < devices; ++b)
        if (a != b)
          problem.devices[a].link = std::max(
              {problem.devices[a].link, problem.pair_links[a][b], problem.pair_links[b][a]});
    PartitionResult result = SolvePartition(problem, {false});
    ASSERT_EQ(CheckPartition(problem, result), "");
    for (const PartitionStage& stage : result.stages)
      EXPECT_EQ(problem.devices[stage.device_class].numbers, stage.numbers);
    // It is worse if every link is as slow as the slowest.
    PartitionProblem slow = problem;
    slow.pair_links.clear();
    slow.devices = {DeviceClass()};
    slow.devices[0].count = devices, slow.devices[0].link = 0.2;
    if (i == 0) {
      EXPECT_LE(result.objective, SolvePartition(slow, {false}).objective * 1.001);
    }

    // The loads after one change.
    PairLoads loads(problem, result);
    PartitionResult changed = result;
    int s = static_cast<int>(random() % result.stages.size());
    int t = static_cast<int>((s + 1) % result.stages.size());
    std::swap(changed.stages[s].numbers, changed.stages[t].numbers);
    EvaluatePartition(problem, changed);
    EXPECT_NEAR(loads.WithDevices(s, changed.stages[s].numbers[0], t), changed.objective,
                1e-9 * changed.objective);
    changed = result;
    int node = changed.stages[s].nodes.back();
    changed.stages[s].nodes.pop_back();
    changed.stages[t].nodes.push_back(node);
    EvaluatePartition(problem, changed);
    EXPECT_NEAR(loads.WithNodes({node}, s, t), changed.objective, 1e-9 * changed.objective);
    EXPECT_NEAR(loads.WithDevices(s, result.stages[s].numbers[0], -1), result.objective,
                1e-9 * result.objective);
  }
}

}  // namespace
}  // namespace pipewright
