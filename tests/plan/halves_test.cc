#include "plan/halves.h"

#include <gtest/gtest.h>

#include "plan/plan_text.h"

namespace pipewright {
namespace {

TEST(Halves, GradientsLeaveBeforeTheWeights) {
  const Plan plan = ReadPlan(
      "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0STEP\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1STEP\n",
      "plan");
  const Plan halves = ReadPlan(
      "0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0STEP\n"
      "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1REDUCE_GRAD,1STEP\n",
      "plan");
  EXPECT_EQ(InHalves(plan).ranks, halves.ranks);
  EXPECT_EQ(InWhole(halves).ranks, plan.ranks);
  EXPECT_EQ(InHalves(halves).ranks, halves.ranks);
  EXPECT_EQ(InWhole(plan).ranks, plan.ranks);
}

TEST(Halves, APairIsTakenApart) {
  const Plan plan = ReadPlan("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "plan");
  EXPECT_EQ(InHalves(plan).ranks, ReadPlan("0F0,0F1,0I0,0W0,0I1,0W1\n", "plan").ranks);
}

}  // namespace
}  // namespace pipewright
