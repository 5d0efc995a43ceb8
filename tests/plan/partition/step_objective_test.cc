#include "plan/partition/step_objective.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/partition/step_bound.h"
#include "plan/partition/step_search.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

// Two nodes of equal work on two devices; the first one's value goes to the second.
PartitionProblem TwoNodes(double transfer, int transfers) {
  PartitionProblem problem;
  problem.nodes.resize(2);
  for (PartitionNode& node : problem.nodes) node.device_time = 6;
  problem.values.push_back({0, {1}, transfer, transfers, 0});
  problem.devices.resize(1);
  problem.devices[0].count = 2;
  return problem;
}

// Without a gradient, the first stage's backward does not wait: F 2, then both are busy for 6.
TEST(StepBound, DoesNotWaitForGradientsThatDoNotCome) {
  PartitionResult result = SolveStep(TwoNodes(0, 1), {}, {"1f1b", 1});
  EXPECT_DOUBLE_EQ(result.objective, 8);
  EXPECT_LE(result.lower_bound, 8 * (1 + 1e-9));
  EXPECT_EQ(result.stages.size(), 2u);
}

// Forward 2, transfer 4, 6 in the second stage, transfer 4, backward 4; two stages take no less.
TEST(StepBound, CountsTheTransferIntoAStage) {
  PartitionProblem problem = TwoNodes(8, 2);
  problem.stages = 2;
  PartitionResult result = SolveStep(problem, {}, {"1f1b", 1});
  EXPECT_DOUBLE_EQ(result.objective, 20);
  EXPECT_NEAR(result.lower_bound, 20, 1e-9);
  EXPECT_TRUE(result.proven);
}

// The second half of a backward may run while the gradient is transferred.
TEST(StepBound, KnowsThatHalvesOfABackwardPart) {
  PartitionProblem problem = TwoNodes(8, 2);
  problem.stages = 2;
  PartitionResult result = SolveStep(problem, {}, {"zb-h1", 1});
  EXPECT_DOUBLE_EQ(result.objective, 18);
  EXPECT_LE(result.lower_bound, 18 * (1 + 1e-9));
}

// Partitions of random graphs, all of them simulated: none is below the bound, and proven ones are
// the best.
TEST(StepBound, IsNeverAboveTheBestOfAllPartitions) {
  std::mt19937 random(7);
  int proven = 0, feasible = 0;
  for (int features : {0, 1, 4, 8, 16, 16 | 64, 32, 8 | 32, 64, 128, 16 | 64 | 128})
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1"})
      for (int i = 0; i < 25; ++i) {
        PartitionProblem problem = RandomProblem(random, 6, features);
        StepOptions step{schedule, 1 + static_cast<int>(random() % 9)};
        auto time = [&](const PartitionResult& result) {
          try {
            return StepTime(problem, result, step);
          } catch (const Error&) {
            return kInfinity;  // the schedule does not support that number of stages
          }
        };
        double best = BruteForceOptimum(problem, time);
        if (best == kInfinity) continue;
        ++feasible;
        PartitionResult result = SolveStep(problem, {}, step);
        ASSERT_TRUE(result.feasible);
        EXPECT_LE(result.lower_bound, best * (1 + 1e-9)) << features << " " << schedule << " " << i;
        EXPECT_GE(result.objective, best * (1 - 1e-9));
        EXPECT_NEAR(result.objective, StepTime(problem, result, step), 1e-9 * result.objective);
        proven += result.proven;
        if (result.proven) {
          EXPECT_NEAR(result.objective, best, 1e-9 * best);
        }
      }
  EXPECT_GT(feasible, 600);
  EXPECT_GT(proven, feasible / 2);
}

// Options that cannot matter, or hardly matter, do not make the answer worse.
TEST(StepSearch, MoreThanItLooksForCostsNothing) {
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    PartitionProblem problem = RandomProblem(random, 12, 0);
    problem.devices.resize(1);
    problem.devices[0].count = problem.stages = 3;
    problem.max_replicas = 1;
    for (const char* schedule : {"1f1b", "gpipe"}) {
      const StepOptions step{schedule, 8};
      const PartitionResult plain = SolveStep(problem, {}, step);
      if (!plain.feasible) continue;
      ASSERT_TRUE(plain.proven) << i;
      PartitionProblem more = problem;
      more.max_replicas = 2;  // 3 stages on 3 devices
      EXPECT_TRUE(SolveStep(more, {}, step).proven);
      more.devices.push_back(more.devices[0]);
      more.devices[0].count = 2, more.devices[1].count = 1;
      more.devices[1].speed = 1 + 1e-9;
      EXPECT_NEAR(SolveStep(more, {}, step).objective, plain.objective, 1e-6 * plain.objective);
      const StepOptions halves{"zb-h1", 8};
      // Partitions that take equally long with 1F1B may be the start of the search.
      EXPECT_LE(SolveStep(problem, {}, halves).objective,
                StepTime(problem, plain, halves) * 1.05);
    }
  }
}

}  // namespace
}  // namespace pipewright
