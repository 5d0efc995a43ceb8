#include "plan/simulate/memory.h"

#include <gtest/gtest.h>

#include "plan/plan_text.h"

namespace pipewright {

namespace {

// Returns the peak memory of the first rank of a plan. Stage s stores 10, grows to 15 while I or B
// runs, and keeps 4 for W, each times s + 1.
double Peak(const std::string& text, bool forward_only = false, double held = 100) {
  const Plan plan = ReadPlan(text, "plan");
  RankMemory memory(held, forward_only);
  for (const Action& action : plan.ranks[0])
    memory.Do(action, [](int stage) {
      return StageMemory{10.0 * (stage + 1), 15.0 * (stage + 1), 4.0 * (stage + 1)};
    });
  return memory.peak();
}

}  // namespace

TEST(Memory, ForwardStoresAndBackwardGivesBack) {
  EXPECT_EQ(Peak("0F0,0B0\n"), 115);          // grows while B runs
  EXPECT_EQ(Peak("0F0,0F1,0B0,0B1\n"), 125);  // two in flight
  EXPECT_EQ(Peak("0F0,0B0,0F1,0B1\n"), 115);  // one at a time
}

TEST(Memory, WeightGradientKeepsAPart) {
  EXPECT_EQ(Peak("0F0,0I0,0W0\n"), 115);
  EXPECT_EQ(Peak("0F0,0I0,0F1,0I1,0W0,0W1\n"), 119);  // 4 kept while the second I runs
}

TEST(Memory, ForwardOnlyKeepsNothing) { EXPECT_EQ(Peak("0F0,0F1,0F2\n", true), 110); }

TEST(Memory, StagesDiffer) { EXPECT_EQ(Peak("0F0,1F0,1B0,0B0\n"), 140); }

TEST(Memory, NothingHeldIsNothing) { EXPECT_EQ(Peak("0F0,0B0\n", false, 0), 15); }

TEST(Memory, LoadsBringWeightsAndEvictsGiveThemBack) {
  RankMemory memory(0, true);
  auto weights = [](int stage) { return stage == 0 ? 50.0 : 70.0; };
  auto nothing = [](int) { return StageMemory{}; };
  const Plan plan = ReadPlan("0LOAD,0F0,0EVICT,1LOAD,1F0,1EVICT\n", "plan");
  for (const Action& action : plan.ranks[0]) {
    memory.Load(action, weights);
    memory.Do(action, nothing);
  }
  EXPECT_EQ(memory.peak(), 70);
}

}  // namespace pipewright
