#include "plan/partition/exact/exact.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

// A chain of nodes that take 3, 1, 2 and 4, with transfers of 1, 5 and 1, on two devices. Its best
// cut is the last: loads 7 and 5.
PartitionProblem Chain() {
  PartitionProblem problem;
  for (double time : {3, 1, 2, 4}) {
    problem.nodes.emplace_back();
    problem.nodes.back().device_time = time;
  }
  problem.values = {{0, {1}, 1, 1, 0}, {1, {2}, 5, 1, 0}, {2, {3}, 1, 1, 0}};
  problem.devices.resize(1);
  problem.devices[0].count = 2;
  return problem;
}

TEST(ExactPartition, FindsOnlyPartitionsUnderTheLimit) {
  const PartitionProblem problem = Chain();
  const UnitGraph graph = BuildUnits(problem, Merge::kNone);
  ExactOptions options;
  options.below = 7.001;
  PartitionResult found = ExactPartition(problem, graph, options);
  EXPECT_EQ(found.objective, 7);
  ASSERT_EQ(found.stages.size(), 2u);
  EXPECT_EQ(found.stages[1].nodes, std::vector<int>{3});
  options.below = 7;
  PartitionResult none = ExactPartition(problem, graph, options);
  EXPECT_FALSE(none.feasible);
  EXPECT_TRUE(none.proven);
}

// Without the cut at the end, the best is one after the first node: loads 4 and 8.
TEST(ExactPartition, LeavesOutTheForbiddenStage) {
  const PartitionProblem problem = Chain();
  ExactOptions options;
  options.forbidden = {0, 1, 2};
  PartitionResult result = ExactPartition(problem, BuildUnits(problem, Merge::kNone), options);
  EXPECT_EQ(result.objective, 8);
  ASSERT_EQ(result.stages.size(), 2u);
  EXPECT_EQ(result.stages[0].nodes, std::vector<int>{0});
}

TEST(ExactPartition, ProvesNothingWithTooLittleEffort) {
  const PartitionProblem problem = Chain();
  const UnitGraph graph = BuildUnits(problem, Merge::kNone);
  ExactOptions sets, late;
  sets.max_sets = 2;
  EXPECT_FALSE(ExactPartition(problem, graph, sets).proven);
  int64_t ticks = 0;
  late.ticks = &ticks;
  EXPECT_FALSE(ExactPartition(problem, graph, late).proven);
  EXPECT_LT(ticks, 0);
}

TEST(SearchBetter, ReturnsTheBetterOfTheTwo) {
  const PartitionProblem problem = Chain();
  const UnitGraph graph = BuildUnits(problem, Merge::kNone);
  PartitionResult known;
  known.feasible = true;
  known.stages.resize(2);
  known.stages[0].nodes = {0, 1};
  known.stages[1].nodes = {2, 3};
  EvaluatePartition(problem, known);
  ASSERT_EQ(known.objective, 11);
  PartitionResult better = SearchBetter(problem, graph, known, {});
  EXPECT_EQ(better.objective, 7);
  EXPECT_TRUE(better.proven);
  ExactOptions little;
  little.max_sets = 2;
  PartitionResult same = SearchBetter(problem, graph, known, little);
  EXPECT_EQ(same.objective, 11);
  EXPECT_FALSE(same.proven);
}

}  // namespace
}  // namespace pipewright
