#include "plan/partition/io/stage_costs.h"

#include <gtest/gtest.h>

#include "plan/simulate/costs.h"

namespace pipewright {

// A chain of three nodes: 10 bytes enter; each node produces 100 and temporarily takes 5.
static Profile Chain() {
  Profile profile;
  profile.nodes.resize(3);
  for (int i = 0; i < 3; ++i) {
    profile.nodes[i].forward_only_peak = (i == 0 ? 10 : 100) + 100 + 5;
    ProfileValue value;
    value.producer = i;
    value.bytes = 100;
    if (i < 2) value.consumers = {i + 1};
    profile.values.push_back(value);
  }
  return profile;
}

static double ForwardOnly(const Profile& profile, const std::vector<int>& stage_of, int stage) {
  return ParseCosts(CostsOfStages(profile, stage_of, 0), "costs").stages[stage].peak.forward_only;
}

TEST(CostsOfStages, AStageHoldsTheOutputsOfItsNodesWithoutBackward) {
  const Profile profile = Chain();
  EXPECT_EQ(ForwardOnly(profile, {0, 1, 2}, 0), 115);
  EXPECT_EQ(ForwardOnly(profile, {0, 1, 2}, 1), 205);
  EXPECT_EQ(ForwardOnly(profile, {0, 0, 0}, 0), 305);
  EXPECT_EQ(ForwardOnly(profile, {0, 0, 1}, 0), 205);
  Profile earlier = profile;  // from a version that did not measure it
  earlier.nodes[1].forward_only_peak = 0;
  EXPECT_EQ(ForwardOnly(earlier, {0, 0, 0}, 0), 0);
}

TEST(CostsOfStages, TheFirstBackwardOfAStepMakesTheSums) {
  // Each node has 40 bytes of weights, keeps 100, and makes 7 and its gradients in the backward.
  Profile profile = Chain();
  for (ProfileNode& node : profile.nodes) {
    node.parameters = node.trained = 40, node.kept = 100, node.kept_for_weight = 20;
    node.peak = 40 + 100 + 40 + 7;
  }
  auto peak = [&](const std::vector<int>& stage_of) {
    return ParseCosts(CostsOfStages(profile, stage_of, 0), "costs").stages[0].peak;
  };
  EXPECT_EQ(peak({0, 1, 2}).B, 147);
  EXPECT_EQ(peak({0, 1, 2}).W, 20 + 40);
  EXPECT_EQ(peak({0, 1, 2}).first_B, 147);
  EXPECT_EQ(peak({0, 1, 2}).first_W, 20 + 40);
  EXPECT_EQ(peak({0, 0, 1}).B, 100 + 147);
  EXPECT_EQ(peak({0, 0, 1}).W, 2 * 20 + 40);
  EXPECT_EQ(peak({0, 0, 1}).first_B, 100 + 147);  // those of the first node are not there yet
  EXPECT_EQ(peak({0, 0, 1}).first_W, 2 * 20 + 2 * 40);
  profile.nodes[0].peak += 200;  // while those of the second node are there
  EXPECT_EQ(peak({0, 0, 1}).B, 347);
  EXPECT_EQ(peak({0, 0, 1}).first_B, 347 + 40);
  profile.nodes[1].trained = 0;  // frozen
  profile.nodes[1].peak -= 40;
  EXPECT_EQ(peak({0, 0, 1}).first_B, 347);
  EXPECT_EQ(peak({0, 0, 1}).first_W, 2 * 20 + 40);
}

// They count whether a backward uses them or not.
TEST(CostsOfStages, ARecomputedStageHoldsAllThatItReceives) {
  Profile profile = Chain();
  profile.values[0].consumers = {1, 2};
  profile.nodes[2].held = {1};
  const Costs costs = ParseCosts(CostsOfStages(profile, {0, 1, 2}, 0), "costs");
  EXPECT_EQ(costs.stages[0].checkpoint, 0);
  EXPECT_EQ(costs.stages[1].checkpoint, 100);
  EXPECT_EQ(costs.stages[1].received, 0);
  EXPECT_EQ(costs.stages[2].checkpoint, 200);
}

}  // namespace pipewright
