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

}  // namespace pipewright
