#include "plan/partition/problem/partition_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

using Ints = std::vector<int>;

PartitionProblem Chain(int nodes, int devices) {
  PartitionProblem problem;
  problem.nodes.resize(nodes);
  for (PartitionNode& node : problem.nodes) node.device_time = 1;
  for (int i = 0; i + 1 < nodes; ++i) problem.values.push_back({i, {i + 1}, 0.5, 1, 0});
  problem.devices.resize(1);
  problem.devices[0].count = devices;
  return problem;
}

TEST(EqualCuts, GivesStagesAboutEqualNumbersOfNodes) {
  const PartitionProblem problem = Chain(5, 3);
  const UnitGraph graph = BuildUnits(problem, Merge::kNone);
  EXPECT_EQ(EqualCuts(problem, graph, 2).stage_of, (Ints{0, 0, 0, 1, 1}));
  EXPECT_EQ(EqualCuts(problem, graph, -1).stage_of, (Ints{0, 0, 1, 1, 2}));
  EXPECT_EQ(EqualCuts(problem, graph, 1).stage_of, Ints(5, 0));
  EXPECT_TRUE(EqualCuts(problem, graph, 4).options.empty());
  const PartitionProblem few = Chain(2, 3);
  EXPECT_TRUE(EqualCuts(few, BuildUnits(few, Merge::kNone), 3).options.empty());
}

TEST(EqualCuts, CountsTheNodesOfUnitsAndLeavesNoStageEmpty) {
  PartitionProblem problem = Chain(6, 3);
  for (int i = 0; i < 4; ++i) problem.nodes[i].group = 0;
  const UnitGraph graph = BuildUnits(problem, Merge::kNone);
  ASSERT_EQ(graph.units.size(), 3u);
  EXPECT_EQ(EqualCuts(problem, graph, 2).stage_of, (Ints{0, 1, 1}));
  EXPECT_EQ(EqualCuts(problem, graph, 3).stage_of, (Ints{0, 1, 2}));
}

TEST(EqualCuts, TakesDevicesByNumberAndNoCpus) {
  PartitionProblem problem = Chain(4, 1);
  problem.devices[0].numbers = {2};
  DeviceClass cpu, other;
  cpu.host = true;
  other.count = 2;
  other.numbers = {0, 3};
  problem.devices.push_back(cpu);
  problem.devices.push_back(other);
  Ints classes;
  for (const StageOption& option :
       EqualCuts(problem, BuildUnits(problem, Merge::kNone), -1).options)
    classes.push_back(option.device_class);
  EXPECT_EQ(classes, (Ints{2, 0, 2}));
}

TEST(PartitionState, ConvertsToAResultAndBack) {
  PartitionProblem problem = Chain(4, 3);
  problem.max_replicas = 2;
  const UnitGraph graph = BuildUnits(problem, Merge::kNone);
  PartitionState state{{{0, 2}, {0, 1}}, {0, 0, 0, 1}};
  PartitionResult result = ResultOfStages(problem, graph, state);
  EXPECT_TRUE(result.feasible);
  EXPECT_EQ(result.lower_bound, 0);
  EXPECT_EQ(result.objective, 1.75);  // three nodes and a transfer of 0.5, on two replicas
  EXPECT_EQ(result.stages[0].nodes, (Ints{0, 1, 2}));
  PartitionState again = StagesOfResult(graph, result);
  EXPECT_EQ(again.stage_of, state.stage_of);
  ASSERT_EQ(again.options.size(), 2u);
  EXPECT_EQ(again.options[0].replicas, 2);
  EXPECT_EQ(again.options[1].replicas, 1);
}

TEST(PartitionState, OrderByStageIsTopologicalAndStable) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const UnitGraph graph = BuildUnits(RandomProblem(random, 12, 0), Merge::kNone);
    PartitionState state;
    int n = static_cast<int>(graph.units.size());
    for (int u = 0; u < n; ++u) {
      int least = 0;
      for (int before : graph.previous[u]) least = std::max(least, state.stage_of[before]);
      state.stage_of.push_back(least + static_cast<int>(random() % 2));
    }
    Ints order(n), place(n);
    std::iota(order.begin(), order.end(), 0);
    order = OrderByStage(order, state);
    for (int p = 0; p < n; ++p) place[order[p]] = p;
    for (int a = 0; a < n; ++a) {
      for (int b : graph.next[a]) EXPECT_LT(place[a], place[b]) << seed;
      for (int b = a + 1; b < n; ++b)
        EXPECT_EQ(place[a] < place[b], state.stage_of[a] <= state.stage_of[b]) << seed;
    }
  }
}

}  // namespace
}  // namespace pipewright
