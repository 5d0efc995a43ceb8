#include "plan/simulate/compare.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/lowering/lower.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/simulate.h"
#include "plan/stage_graph.h"

namespace pipewright {
namespace {

Plan Lowered(int ranks, int microbatches) {
  StagePlacement placement = ParsePlacement("loop", ranks, ranks);
  return Lower(MakeSchedule("1f1b", ranks, ranks, microbatches, placement), ChainGraph(placement));
}

Costs Times(double f, double i, double w) {
  Costs costs;
  StageCosts& stage = costs.stages.emplace_back();
  stage.F = f, stage.I = i, stage.W = w, stage.B = i + w;
  stage.output = 10;
  return costs;
}

// 4 microbatches, 3 ranks, no latency: (m + p - 1)(F + B) a step.
TEST(Compare, MediansStepAndRanks) {
  Plan plan = Lowered(3, 4);
  SimulateOptions three;
  three.steps = 3, three.barrier = true;
  std::vector<TraceAction> measured =
      ReadChromeTrace(ChromeTrace(plan, Simulate(plan, Times(2, 3, 1), three)), "trace.json");
  Comparison c = CompareTraces(ActionsOf(plan, Simulate(plan, Times(1, 1, 1))), measured);
  EXPECT_EQ(c.predicted_step, 6 * 3);
  EXPECT_EQ(c.measured_step, 6 * 6);
  EXPECT_EQ(c.predicted_steps, 1);
  EXPECT_EQ(c.measured_steps, 3);
  ASSERT_EQ(c.kinds.size(), 2u);
  EXPECT_EQ(c.kinds[0].kind, ActionKind::kForward);
  EXPECT_EQ(c.kinds[0].predicted, 1);
  EXPECT_EQ(c.kinds[0].measured, 2);
  EXPECT_EQ(c.kinds[0].predicted_count, 12);
  EXPECT_EQ(c.kinds[0].measured_count, 36);
  EXPECT_EQ(c.kinds[1].measured, 4);
  EXPECT_EQ(c.stages.size(), 6u);
  ASSERT_EQ(c.ranks.size(), 3u);
  EXPECT_EQ(c.ranks[2].measured_busy, 24);
  EXPECT_EQ(c.ranks[2].measured_idle, 12);
  EXPECT_EQ(c.ranks[2].predicted_idle, 6);
}

// Records of a run are written and read in the same form.
TEST(Compare, RecordsOfARun) {
  Plan plan = Lowered(2, 3);
  ActionTrace trace = Simulate(plan, Times(2, 3, 1));
  std::vector<TraceAction> actions = ActionsOf(plan, trace);
  std::vector<TraceAction> read = ReadChromeTrace(ChromeTrace(plan, trace), "t");
  ASSERT_EQ(read.size(), actions.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].action, actions[i].action);
    EXPECT_EQ(read[i].rank, actions[i].rank);
    EXPECT_EQ(read[i].end, actions[i].end);
  }
}

TEST(Compare, OtherEventsAreSkippedAndMisfitsRefused) {
  std::string one = R"({"traceEvents": [
      {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {}},
      {"ph": "X", "name": "read batch", "pid": 0, "tid": 0, "ts": 0, "dur": 9},
      {"ph": "X", "name": "0F0", "pid": 0, "tid": 0, "ts": 5, "dur": 2}]})";
  std::vector<TraceAction> actions = ReadChromeTrace(one, "t");
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].start, 5);
  EXPECT_EQ(actions[0].end, 7);
  Plan plan = Lowered(2, 2);
  EXPECT_THROW(CompareTraces(ActionsOf(plan, Simulate(plan, Times(1, 1, 1))), actions), Error);
  try {
    ReadChromeTrace("{}", "t");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "t: not a Chrome trace: \"traceEvents\" is missing");
  }
  EXPECT_THROW(ReadChromeTrace(R"({"traceEvents": []})", "t"), Error);
}

TEST(Compare, AnotherOrderIsNamed) {
  Plan plan = Lowered(2, 3);
  StagePlacement placement = ParsePlacement("loop", 2, 2);
  Plan other = Lower(MakeSchedule("gpipe", 2, 2, 3, placement), ChainGraph(placement));
  SimulateOptions two;
  two.steps = 2;
  std::vector<TraceAction> ran = ActionsOf(plan, Simulate(plan, Times(2, 3, 1), two));
  EXPECT_EQ(OrderDifference(ActionsOf(plan, Simulate(plan, Times(1, 1, 1))), ran, 3), "");
  EXPECT_EQ(OrderDifference(ActionsOf(other, Simulate(other, Times(1, 1, 1))), ran, 3),
            "rank 0 ran 0B0 as its action 2, the plan has 0F2 there");
  ran.resize(5);  // rank 0 has six actions
  EXPECT_EQ(OrderDifference(ActionsOf(plan, Simulate(plan, Times(1, 1, 1))), ran, 3),
            "rank 0 ran nothing as its action 5, the plan has 0B2 there");
}

TEST(Compare, BytesALink) {
  Plan plan = Lowered(3, 4);
  ActionTrace trace = Simulate(plan, Times(1, 1, 1));
  ASSERT_EQ(trace.links.size(), 4u);  // 0 > 1, 1 > 0, 1 > 2, 2 > 1
  for (const LinkTraffic& link : trace.links) {
    EXPECT_EQ(link.messages, 4);
    EXPECT_EQ(link.bytes, 40);
  }
  std::string ends;
  for (const LinkTraffic& link : trace.links)
    ends += std::to_string(link.from) + ">" + std::to_string(link.to) + " ";
  EXPECT_EQ(ends, "0>1 1>0 1>2 2>1 ");
}

}  // namespace
}  // namespace pipewright
