#include "plan/simulate/costs_from_trace.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "plan/lowering/lower.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/compare.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/simulate.h"
#include "plan/stage_graph.h"

namespace pipewright {
namespace {

Plan Lowered(const std::string& schedule, int ranks, int stages, int microbatches) {
  StagePlacement placement = ParsePlacement(schedule == "zbv" ? "v" : "loop", ranks, stages);
  return Lower(MakeSchedule(schedule, ranks, stages, microbatches, placement),
               ChainGraph(placement));
}

Costs Link(double latency) {
  Costs costs = UnitCosts();
  costs.stages[0].step = 3;
  costs.link.latency = latency;
  return costs;
}

// A "run" in which every action of every step takes a different time.
ActionTrace Uneven(const Plan& plan, const Costs& costs, int steps) {
  SimulateOptions options;
  options.steps = steps;
  auto random = std::make_shared<std::mt19937>(7);
  options.duration = [random](int, int, const Action&) { return 1.0 + (*random)() % 64; };
  return Simulate(plan, costs, options);
}

TEST(Replay, IsTheRunAgain) {
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb1p", "zbv"}) {
    SCOPED_TRACE(schedule);
    const int stages =
        schedule == std::string("interleaved") || schedule == std::string("zbv") ? 4 : 2;
    Plan plan = Lowered(schedule, 2, stages, 6);
    const Costs costs = Link(5);
    const ActionTrace run = Uneven(plan, costs, 3);
    const auto measured = ReadChromeTrace(ChromeTrace(plan, run), "run.json");
    EXPECT_EQ(StepsOf(measured), 3);
    SimulateOptions options;
    options.steps = 3;
    options.duration = DurationsOf(measured, "run.json");
    const ActionTrace again = Simulate(plan, costs, options);
    ASSERT_EQ(again.ranks.size(), run.ranks.size());
    for (size_t r = 0; r < run.ranks.size(); ++r) {
      ASSERT_EQ(again.ranks[r].size(), run.ranks[r].size());
      for (size_t i = 0; i < run.ranks[r].size(); ++i) {
        EXPECT_EQ(again.ranks[r][i].action, run.ranks[r][i].action);
        EXPECT_EQ(again.ranks[r][i].end, run.ranks[r][i].end) << "rank " << r << ", event " << i;
      }
    }
    // A slower link delays it: durations are from the trace, the rest is simulated.
    EXPECT_GT(Simulate(plan, Link(500), options).ranks[0].back().end, run.ranks[0].back().end);
  }
}

TEST(Replay, BeginsAgainWhereTheTraceEnds) {
  Plan plan = Lowered("1f1b", 2, 2, 3);
  const auto measured =
      ReadChromeTrace(ChromeTrace(plan, Uneven(plan, Link(0), 2)), "run.json");
  auto duration = DurationsOf(measured, "run.json");
  int forwards = 0;
  for (const Action& a : plan.ranks[0]) {
    if (a.kind != ActionKind::kForward) continue;
    EXPECT_EQ(duration(0, 0, a), duration(0, 2, a));
    ++forwards;
  }
  EXPECT_EQ(forwards, 3);
}

TEST(Replay, AnActionThatWasNotMeasuredIsNamed) {
  Plan plan = Lowered("1f1b", 2, 2, 3);
  const auto measured =
      ReadChromeTrace(ChromeTrace(plan, Uneven(plan, Link(0), 1)), "run.json");
  SimulateOptions options;
  options.duration = DurationsOf(measured, "run.json");
  try {
    Simulate(Lowered("1f1b", 2, 2, 4), Link(0), options);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "run.json: its step 0 has no 0F3 on rank 0\n  replay the plan that was run");
  }
  // A STEP that took no time is not in the trace.
  Action step;
  step.kind = ActionKind::kStep;
  step.stage = 9;
  EXPECT_EQ(options.duration(0, 0, step), 0);
}

TEST(Replay, StepsOfOneNumberAreRefused) {
  Plan plan = Lowered("1f1b", 2, 2, 3);
  auto measured = ReadChromeTrace(ChromeTrace(plan, Uneven(plan, Link(0), 2)), "run.json");
  for (TraceAction& action : measured) action.step = 0;
  try {
    DurationsOf(measured, "run.json");
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "run.json: its step 0 has 0F0 on rank 0 twice\n  each step of the trace needs a "
                 "number of its own (\"args\": {\"step\": N})");
  }
}

}  // namespace
}  // namespace pipewright
