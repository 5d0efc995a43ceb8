#include "plan/partition/step.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

// Two nodes of equal work, the first's value going to the second, on two devices.
PartitionProblem TwoNodes(double transfer, int transfers) {
  PartitionProblem problem;
  problem.nodes.resize(2);
  for (PartitionNode& node : problem.nodes) node.device_time = 6;
  problem.values.push_back({0, {1}, transfer, transfers, 0});
  problem.devices.resize(1);
  problem.devices[0].count = 2;
  return problem;
}

// Without a gradient the first stage's backward waits for nobody: F 2, then both are busy for 6.
TEST(StepBound, DoesNotWaitForGradientsThatDoNotCome) {
  PartitionResult result = SolveStep(TwoNodes(0, 1), {}, {"1f1b", 1});
  EXPECT_DOUBLE_EQ(result.objective, 8);
  EXPECT_LE(result.lower_bound, 8 * (1 + 1e-9));
  EXPECT_EQ(result.stages.size(), 2u);
}

// Forward 2, 4 on the way, 6 in the second stage, 4 back, backward 4; no less for two stages.
TEST(StepBound, CountsTheTransferIntoAStage) {
  PartitionProblem problem = TwoNodes(8, 2);
  problem.stages = 2;
  PartitionResult result = SolveStep(problem, {}, {"1f1b", 1});
  EXPECT_DOUBLE_EQ(result.objective, 20);
  EXPECT_NEAR(result.lower_bound, 20, 1e-9);
  EXPECT_TRUE(result.proven);
}

// The second half of a backward may be done while the gradient travels.
TEST(StepBound, KnowsThatHalvesOfABackwardPart) {
  PartitionProblem problem = TwoNodes(8, 2);
  problem.stages = 2;
  PartitionResult result = SolveStep(problem, {}, {"zb-h1", 1});
  EXPECT_DOUBLE_EQ(result.objective, 18);
  EXPECT_LE(result.lower_bound, 18 * (1 + 1e-9));
}

}  // namespace
}  // namespace pipewright
