#include "plan/partition/fast/windows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "plan/partition/fast/multilevel.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

std::vector<int> Numbers(const UnitGraph& graph) {
  std::vector<int> numbers(graph.units.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

constexpr int64_t kTicks = 100'000'000;

TEST(ImproveWindows, NeverMakesAPartitionWorse) {
  int better = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = RandomProblem(random, 40, seed % 2 ? 16 : 0);
    problem.devices[0].count = 5;
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    PartitionState equal = EqualCuts(problem, graph, -1);
    PartitionResult known = ResultOfStages(problem, graph, equal);
    ASSERT_EQ(CheckPartition(problem, known), "") << seed;
    known.lower_bound = 1e-3;
    int64_t ticks = kTicks;
    PartitionResult result = ImproveWindows(problem, graph, Numbers(graph), known, {}, ticks);
    EXPECT_EQ(CheckPartition(problem, result), "") << seed;
    EXPECT_LE(result.objective, known.objective) << seed;
    EXPECT_EQ(result.lower_bound, known.lower_bound) << seed;
    better += result.objective < known.objective;
    PartitionResult again = result;
    EvaluatePartition(problem, again);
    EXPECT_NEAR(again.objective, result.objective, 1e-9) << seed;
  }
  EXPECT_GT(better, 15);
}

// The only window of two stages is the whole graph.
TEST(ImproveWindows, FindsTheBestOfTwoStages) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = RandomProblem(random, 8, seed % 2 ? 16 : 0);
    problem.devices[0].count = 2;
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    if (graph.units.size() < 2) continue;
    PartitionResult known = ResultOfStages(problem, graph, EqualCuts(problem, graph, 2));
    int64_t ticks = kTicks;
    PartitionResult result = ImproveWindows(problem, graph, Numbers(graph), known, {}, ticks);
    EXPECT_NEAR(result.objective, BruteForceOptimum(problem), 1e-9) << seed;
    EXPECT_LT(ticks, kTicks);
  }
}

TEST(ImproveWindows, ChangesNothingWithoutTicks) {
  std::mt19937 random(1);
  PartitionProblem problem = RandomProblem(random, 40, 0);
  problem.devices[0].count = 2;
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  PartitionResult known = ResultOfStages(problem, graph, EqualCuts(problem, graph, 2));
  int64_t ticks = 0;
  PartitionResult result = ImproveWindows(problem, graph, Numbers(graph), known, {}, ticks);
  EXPECT_EQ(result.objective, known.objective);
}

TEST(MultilevelPartition, IsValidAndTheSameEachTime) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = RandomProblem(random, 100, seed % 2 ? 16 : 0);
    problem.devices[0].count = 4;
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    auto solve = [&] {
      int64_t steps = 20'000'000;
      MultilevelOptions options;
      options.steps = &steps;
      PartitionState state = MultilevelPartition(problem, graph, Resources(problem), options);
      EXPECT_LT(steps, 20'000'000);
      return state;
    };
    PartitionState state = solve();
    ASSERT_FALSE(state.options.empty()) << seed;
    PartitionResult result = ResultOfStages(problem, graph, state);
    EXPECT_EQ(CheckPartition(problem, result), "") << seed;
    double work = 0;
    for (const PartitionNode& node : problem.nodes) work += node.device_time;
    EXPECT_LE(result.objective, work + 1e-9) << seed;  // one stage
    EXPECT_EQ(solve().stage_of, state.stage_of) << seed;
  }
}

// Eight clusters of ten nodes in a chain, with much traffic inside and hardly any between them.
TEST(MultilevelPartition, CutsBetweenClusters) {
  PartitionProblem problem;
  problem.nodes.resize(80);
  for (int i = 0; i < 80; ++i) {
    problem.nodes[i].device_time = 1;
    if (i + 1 < 80) problem.values.push_back({i, {i + 1}, i % 10 == 9 ? 0.1 : 50, 1, 0});
  }
  problem.devices.resize(1);
  problem.devices[0].count = 8;
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  int64_t steps = 20'000'000;
  MultilevelOptions options;
  options.steps = &steps;
  PartitionState state = MultilevelPartition(problem, graph, Resources(problem), options);
  EXPECT_NEAR(ResultOfStages(problem, graph, state).objective, 10.2, 1e-9);
}

// A partition to begin with is not made worse.
TEST(MultilevelPartition, ImprovesTheStart) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = RandomProblem(random, 100, 0);
    problem.devices[0].count = 3;
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    PartitionState start = EqualCuts(problem, graph, -1);
    int64_t steps = 20'000'000;
    MultilevelOptions options;
    options.steps = &steps;
    options.start = &start;
    options.apart = &start.stage_of;
    PartitionState state = MultilevelPartition(problem, graph, Resources(problem), options);
    PartitionResult result = ResultOfStages(problem, graph, state);
    EXPECT_EQ(CheckPartition(problem, result), "") << seed;
    EXPECT_LE(result.objective, ResultOfStages(problem, graph, start).objective + 1e-9) << seed;
  }
}

}  // namespace
}  // namespace pipewright
