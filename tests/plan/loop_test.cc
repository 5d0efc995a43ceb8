// Folds plans of many steps into a loop, and unrolls them again.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/loop_text.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "plan/receive_buffers.h"
#include "plan/schedules/schedule.h"
#include "plan/stage_graph.h"
#include "tests/plan/random_plan.h"

namespace pipewright {
namespace {

Plan Unnumbered(Plan plan) {
  for (auto& actions : plan.ranks)
    for (Action& a : actions) a.slot = -1;
  return plan;
}

// Folding and unrolling to any number of steps equals lowering that many; the text keeps every
// byte.
void CheckLoop(const StepLoop& schedule, const StageGraph& graph, bool versions) {
  auto lowered = [&](int steps) {
    Plan plan = Lower(Unroll(schedule, steps), graph);
    if (versions) SetVersions(plan);
    return plan;
  };
  StepLoop loop = Fold(lowered(14));
  int around = StepsAround(loop);
  ASSERT_LT(around, 12);
  std::string text = WriteLoop(loop, around + 3);
  int steps = 0;
  StepLoop read = ReadLoop(text, "loop", steps);
  EXPECT_EQ(steps, around + 3);
  EXPECT_EQ(WriteLoop(read, steps), text);
  for (int n : {around, around + 1, around + 3, 14}) {
    if (n < 1) continue;
    Plan plan = ReadPlanOrLoop(text, "loop", n);
    EXPECT_EQ(plan.steps, n);
    ASSERT_NO_THROW(Validate(plan, graph));
    ASSERT_EQ(WritePlan(ComputeOnly(plan)), WritePlan(ComputeOnly(lowered(n))));
    if (n < 14) continue;
    ASSERT_EQ(WritePlan(Unnumbered(plan)), WritePlan(Unnumbered(lowered(n))));
  }
}

TEST(Loop, SynchronousPlansFoldAndUnroll) {
  std::mt19937 random(5);
  int done = 0;
  for (int n = 0; n < 120; ++n) {
    std::optional<RandomCase> c =
        MakeRandomCase(random, ScheduleNames()[static_cast<size_t>(n) % ScheduleNames().size()]);
    if (!c || c->forward_only) continue;
    CheckLoop(Synchronous(c->schedule), c->graph, false);
    if (HasFatalFailure() || HasFailure()) FAIL() << c->name;
    ++done;
  }
  EXPECT_GT(done, 40);
}

TEST(Loop, AsynchronousPlansFoldAndUnroll) {
  for (int p = 1; p <= 5; ++p)
    for (int m : {1, 2, 5}) {
      StageGraph graph = ChainGraph(ParsePlacement("loop", p, p));
      CheckLoop(AsynchronousOneForwardOneBackward(p, m), graph, true);
      if (HasFailure()) FAIL() << p << " " << m;
    }
}

TEST(Loop, NumbersSlotsAsLoweringDoes) {
  std::mt19937 random(6);
  for (int n = 0; n < 200; ++n) {
    int ranks = Pick(random, 1, 5), stages = ranks * Pick(random, 1, 3);
    Plan plan =
        Lower(MakeSchedule(n % 2 ? "1f1b" : "interleaved", ranks, stages, Pick(random, 1, 9),
                           ParsePlacement(n % 3 ? "loop" : "v", ranks, stages)),
              ChainGraph(ParsePlacement(n % 3 ? "loop" : "v", ranks, stages)));
    Plan again = Unnumbered(plan);
    NumberSlots(again);
    ASSERT_EQ(WritePlan(again), WritePlan(plan));
  }
}

void Refused(const std::string& text, const std::string& part) {
  try {
    ReadPlanOrLoop(text, "loop");
    ADD_FAILURE() << text;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Loop, Refusals) {
  Refused("#body\n0F0\n", "#prologue is missing");
  Refused("#prologue\n\n#body\n0F0\n#epilogue\n\n\n", "2 ranks");
  Refused("#prologue\n\n#body\n0F0,1F0,1F1\n#epilogue\n\n", "every stage");
  Refused("#stepps 3\n0F0\n", "did you mean \"steps\"");
  Refused("#steps 3\n0F0,0F1\n", "#steps 3");
  Refused("#shared 3,0\n0F0\n", "ascend");
  Refused("#recompute x\n0F0\n", "not a number");
}

TEST(Loop, HeadersKeepEveryByte) {
  for (std::string text :
       {"# by hand\n#shared 0,1\n0F0,0B0,0REDUCE_GRAD,0STEP\n1F0,1B0,1REDUCE_GRAD,1STEP\n",
        "#recompute 0\r\n0F0,0B0\r\n", "#steps 2\n0F0,0F1\n"})
    EXPECT_EQ(WritePlan(ReadPlan(text, "t")), text);
  Plan plan = ReadPlan("#shared 0,1\n#recompute 1\n0F0\n1F0\n", "t");
  EXPECT_EQ(plan.shared, (std::vector<std::vector<int>>{{0, 1}}));
  EXPECT_EQ(plan.recompute, std::vector<int>{1});
  plan.recompute = {};
  EXPECT_EQ(WritePlan(plan), "#shared 0,1\n0F0\n1F0\n");
}

}  // namespace
}  // namespace pipewright
