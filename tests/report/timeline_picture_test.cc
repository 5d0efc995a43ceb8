// Draws timelines and memory over a step: checks where rectangles lie, and how many there are.
#include "report/timeline_picture.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "plan/plan_text.h"
#include "plan/simulate/simulate.h"
#include "plan/simulate/trace.h"
#include "report/memory_picture.h"

namespace pipewright {
namespace {

TraceAction Timed(int rank, ActionKind kind, int microbatch, double start, double end,
                  int step = 0) {
  TraceAction action;
  action.rank = rank, action.step = step, action.start = start, action.end = end;
  action.action.kind = kind, action.action.stage = rank, action.action.microbatch = microbatch;
  return action;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(StepOf, PicksAStepAndShiftsItToZero) {
  const std::vector<TraceAction> actions = {Timed(0, ActionKind::kForward, 0, 1, 2, 0),
                                            Timed(0, ActionKind::kForward, 1, 9, 11, 3),
                                            Timed(1, ActionKind::kBackward, 1, 7, 8, 3)};
  for (int step : {-1, 3}) {
    const auto last = StepOf(actions, step, "t.json");
    ASSERT_EQ(last.size(), 2u);
    EXPECT_EQ(last[0].start, 2);
    EXPECT_EQ(last[0].end, 4);
    EXPECT_EQ(last[1].start, 0);
    EXPECT_EQ(last[1].end, 1);
  }
  EXPECT_EQ(StepOf(actions, 0, "t.json").size(), 1u);
  try {
    StepOf(actions, 2, "t.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "t.json: it has no step 2; the last one is 3");
  }
}

// The axis has 1200 pixels from x = 130, and rank 1's second row begins at 54 + 42 + 18.
TEST(TimelineSvg, PlacesActionsByTimeRankAndTimeline) {
  const std::string svg =
      TimelineSvg({{"predicted", {Timed(0, ActionKind::kForward, 7, 0, 3)}},
                   {"<measured>", {Timed(1, ActionKind::kWeightGrad, 2, 9, 12)}}},
                  "time in microseconds");
  EXPECT_NE(svg.find("<rect x=\"130\" y=\"54\" width=\"299.5\" height=\"18\" class=\"F\">"
                     "<title>0F7: 0 to 3, 3</title></rect>\n"
                     "<text x=\"280\" y=\"66.5\" class=\"small middle on\">7</text>"),
            std::string::npos);
  EXPECT_NE(svg.find("<rect x=\"1030\" y=\"114\" width=\"299.5\" height=\"18\" class=\"W\">"),
            std::string::npos);
  EXPECT_EQ(Count(svg, "rank 1 &lt;measured&gt;"), 1u);
  EXPECT_EQ(Count(svg, ">idle 75 %<"), 2u);
  EXPECT_EQ(Count(svg, ">idle 100 %<"), 2u);
  EXPECT_EQ(Count(svg, "class=\"end\">time in microseconds<"), 1u);
}

TEST(TimelineSvg, AcceptsNothingAndManyRanks) {
  EXPECT_EQ(Count(TimelineSvg({}, ""), "class=\"idle\""), 1u);  // the legend
  EXPECT_EQ(Count(TimelineSvg({{"predicted", {}}}, ""), ">rank "), 0u);
  const std::string svg = TimelineSvg({{"m", {Timed(63, ActionKind::kForward, 0, 0, 1)}}}, "");
  EXPECT_EQ(Count(svg, ">rank "), 64u);
  EXPECT_NE(svg.find("height=\"1598\""), std::string::npos);  // 54 + 64 * 24 + 8
}

// 10000 actions of which every other one is a backward three times as long: each pixel is green.
TEST(TimelineSvg, MergesNarrowActions) {
  Timeline timeline{"m", {}};
  for (int i = 0; i < 5000; ++i) {
    timeline.actions.push_back(Timed(0, ActionKind::kForward, i, 4.0 * i, 4.0 * i + 1));
    timeline.actions.push_back(Timed(0, ActionKind::kBackward, i, 4.0 * i + 1, 4.0 * i + 4));
  }
  const std::string svg = TimelineSvg({timeline}, "");
  EXPECT_NE(
      svg.find("<rect x=\"130\" y=\"54\" width=\"1200\" height=\"18\" class=\"B\"/>"),
      std::string::npos);
  EXPECT_LT(svg.size(), 10000u);
}

// One rank with 100 bytes of weights that holds 50 more from the start of F to the end of B.
TEST(MemorySvg, ShowsEachRanksPeakAgainstTheLimit) {
  const Plan plan = ReadPlan("0F0,0B0\n", "p.csv");
  Costs costs = UnitCosts();
  costs.stages[0].weights = 100, costs.stages[0].activation = 50;
  const ActionTrace trace = Simulate(plan, costs);
  const std::string roomy = MemorySvg(plan, costs, trace, 200, "in units of c.json");
  EXPECT_EQ(Count(roomy, ">150 B, 75 %</text>"), 1u) << roomy;
  EXPECT_EQ(Count(roomy, "class=\"bad\""), 0u);
  const std::string tight = MemorySvg(plan, costs, trace, 140, "in units of c.json");
  EXPECT_EQ(Count(tight, "class=\"bad\">150 B, 10 B over</text>"), 1u) << tight;
  const std::string free = MemorySvg(plan, costs, trace, 0, "in units of c.json");
  EXPECT_EQ(Count(free, "class=\"limit\""), 0u);
  EXPECT_EQ(Count(free, "a row is 150 B high"), 1u) << free;
  EXPECT_EQ(Count(free, "class=\"end\">in units of c.json<"), 1u) << free;
}

}  // namespace
}  // namespace pipewright
