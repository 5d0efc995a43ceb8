#include "plan/schedules/generators.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan/actions.h"
#include "plan/plan_text.h"

namespace pipewright {

namespace {

ScheduleRequest Plain(int ranks, int microbatches) {
  return {ranks, ranks, microbatches, ParsePlacement("loop", ranks, ranks)};
}

}  // namespace

TEST(Generators, Placements) {
  EXPECT_TRUE(IsPlainPipeline({{0}, {1}, {2}}));
  EXPECT_FALSE(IsPlainPipeline({{0}, {2}, {1}}));
  EXPECT_FALSE(IsPlainPipeline({{0}, {1, 2}}));
  EXPECT_TRUE(IsLoop({{0}, {1}, {0}, {1}}, 2));
  EXPECT_TRUE(IsLoop({{0}, {1}, {0}}, 2));
  EXPECT_FALSE(IsLoop({{0}, {1}, {1}, {0}}, 2));
  EXPECT_FALSE(IsLoop({{0}, {1}}, 3));  // a rank without a stage
  EXPECT_FALSE(IsLoop({{0, 1}, {1}}, 2));
}

TEST(Generators, RoundUp) {
  for (int n = 1; n < 6; ++n)
    for (int value = 0; value < 20; ++value) {
      int least = value;
      while (least % n) ++least;
      EXPECT_EQ(RoundUp(value, n), least);
    }
}

TEST(Generators, TrimRemovesStagesAndMicrobatches) {
  Plan plan = ReadPlan("0F0,,0F1,2F0,2B0,0B0,0B1\n1F0,1F1,1B0,1B1\n", "p");
  Trim(plan, 2, 1);
  EXPECT_EQ(WritePlan(plan), "0F0,0B0\n1F0,1B0\n");
  EXPECT_EQ(plan.stages, 2);
  EXPECT_EQ(plan.microbatches, 1);
}

TEST(Generators, OrdersOfAPlainPipeline) {
  EXPECT_EQ(WritePlan(ComputeOnly(Gpipe(Plain(2, 2)))), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(WritePlan(ComputeOnly(OneForwardOneBackward(Plain(2, 3)))),
            "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
}

// A step of either takes (M + P - 1) * 3 (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
// Training", ICML 2021).
TEST(Generators, UnitEndsOfPlainPipelines) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int microbatches = 1; microbatches <= 8; ++microbatches) {
      const ScheduleRequest request = Plain(ranks, microbatches);
      const int64_t end = 3 * (microbatches + ranks - 1);
      EXPECT_EQ(UnitEnd(Gpipe(request), request), end);
      EXPECT_EQ(UnitEnd(OneForwardOneBackward(request), request), end);
      if (microbatches >= ranks) {
        EXPECT_LE(UnitEnd(ZeroBubbleH1(request), request), end);
      }
    }
}

TEST(Generators, AnOrderThatDeadlocksNeverEnds) {
  const ScheduleRequest request = Plain(2, 2);
  EXPECT_EQ(UnitEnd(ReadPlan("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "p"), request),
            std::numeric_limits<int64_t>::max());
}

}  // namespace pipewright
