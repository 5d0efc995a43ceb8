#include "plan/simulate/trace.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "plan/plan_text.h"

namespace pipewright {

namespace {

const char kPlan[] = "0F0,0F1,0B0\n1F0,1I0,1W0\n";

Trace TraceOf() {
  Trace trace;
  trace.ranks = {{{0, 0, 0, 1}, {1, 0, 1, 2}, {2, 0, 4, 6}},
                 {{0, 0, 1, 2}, {1, 0, 2, 3}, {2, 0, 3, 4}}};
  trace.transfers = {{0, 1, 0, 1, 0, false, 1, 1.5}};
  return trace;
}

}  // namespace

TEST(Trace, TextTimelineShowsEachActionInItsColumn) {
  const Plan plan = ReadPlan(kPlan, "plan");
  EXPECT_EQ(TextTimeline(plan, TraceOf(), 80), "rank 0  01..bb\nrank 1  .0iw\n");
}

TEST(Trace, TextTimelineKeepsToItsWidth) {
  const Plan plan = ReadPlan(kPlan, "plan");
  EXPECT_EQ(TextTimeline(plan, TraceOf(), 3), "rank 0  1.b\nrank 1  0w\n");
}

TEST(Trace, ChromeTraceNamesRanksActionsAndFlows) {
  const Plan plan = ReadPlan(kPlan, "plan");
  const Json json = Json::parse(ChromeTrace(plan, TraceOf()));
  int names = 0, actions = 0, starts = 0, ends = 0;
  for (const Json& event : json.at("traceEvents")) {
    const std::string kind = event.at("ph");
    if (kind == "M") ++names;
    if (kind == "X") {
      ++actions;
      EXPECT_GE(event.at("dur").get<double>(), 0);
      const Action& action =
          plan.ranks[event.at("tid").get<size_t>()][event.at("args").at("position").get<size_t>()];
      EXPECT_EQ(event.at("name"), ToText(action));
    }
    if (kind == "s") {
      ++starts;
      EXPECT_EQ(event.at("tid"), 0);
      EXPECT_EQ(event.at("ts"), 1.0);
    } else if (kind == "f") {
      ++ends;
      EXPECT_EQ(event.at("tid"), 1);
      EXPECT_EQ(event.at("ts"), 1.5);
    }
  }
  EXPECT_EQ(names, 2);
  EXPECT_EQ(actions, 6);
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(ends, 1);
}

}  // namespace pipewright
