#include "plan/simulate/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/plan_text.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/rank_account.h"
#include "plan/simulate/simulate.h"
#include "plan/stage_graph.h"

namespace pipewright {
namespace {

const char kPlan[] = "0F0,0F1,0B0\n1F0,1I0,1W0\n";

ActionTrace TraceOf() {
  ActionTrace trace;
  trace.ranks = {{{0, 0, 0, 1}, {1, 0, 1, 2}, {2, 0, 4, 6}},
                 {{0, 0, 1, 2}, {1, 0, 2, 3}, {2, 0, 3, 4}}};
  return trace;
}

TEST(Trace, TextTimelineShowsEachActionInItsColumn) {
  const Plan plan = ReadPlan(kPlan, "plan");
  EXPECT_EQ(TextTimeline(plan, TraceOf(), 80), "rank 0  01..bb\nrank 1  .0iw\n");
}

TEST(Trace, AColumnIsTheShortestActionIfAllFit) {
  EXPECT_EQ(TimelineColumn(TraceOf(), 80), 1);
  EXPECT_EQ(TimelineColumn(TraceOf(), 3), 2);
}

TEST(Trace, TextTimelineKeepsToItsWidth) {
  const Plan plan = ReadPlan(kPlan, "plan");
  EXPECT_EQ(TextTimeline(plan, TraceOf(), 3), "rank 0  1.b\nrank 1  0w\n");
}

// --- the Trace Event Format, as Perfetto reads it ---

// Calls `see` for the events of a phase.
template <typename See>
void Each(const Json& trace, const char* phase, See see) {
  for (const Json& event : trace.at("traceEvents"))
    if (event.at("ph") == phase) see(event);
}

using Row = std::pair<int, int>;  // process, thread
Row RowOf(const Json& event) { return {event.at("pid"), event.value("tid", 0)}; }

// Returns the slices of each row by start; checks that they do not overlap.
std::map<Row, std::map<double, double>> SlicesOf(const Json& trace) {
  std::map<Row, std::map<double, double>> rows;
  Each(trace, "X", [&](const Json& e) {
    const double start = e.at("ts"), duration = e.at("dur");
    EXPECT_GE(duration, 0);
    auto& end = rows[RowOf(e)].try_emplace(start, start).first->second;
    end = std::max(end, start + duration);
  });
  for (const auto& [row, slices] : rows) {
    double last = -1;
    for (const auto& [start, end] : slices) {
      EXPECT_GE(start, last - 1e-6) << "row " << row.first << " " << row.second;
      last = end;
    }
  }
  return rows;
}

void ExpectWellFormed(const Json& trace) {
  const auto rows = SlicesOf(trace);
  std::map<Row, std::string> threads;
  std::map<int, std::string> processes;
  Each(trace, "M", [&](const Json& e) {
    const std::string name = e.at("args").at("name");
    const bool added = e.at("name") == "process_name"
                           ? processes.emplace(RowOf(e).first, name).second
                           : threads.emplace(RowOf(e), name).second;
    EXPECT_TRUE(added) << name << " is named twice";
  });
  for (const auto& [row, slices] : rows) {
    EXPECT_EQ(threads[row], "rank " + std::to_string(row.second));
    EXPECT_NE(processes[row.first], "");
  }
  auto within = [&](const Json& e) {
    const double time = e.at("ts");
    const auto& slices = rows.at(RowOf(e));
    auto after = slices.upper_bound(time);
    return after != slices.begin() && std::prev(after)->second >= time - 1e-6;
  };
  std::map<int, Json> open;
  Each(trace, "s", [&](const Json& e) {
    EXPECT_TRUE(within(e)) << e;
    EXPECT_TRUE(open.emplace(e.at("id"), e).second) << e;
  });
  Each(trace, "f", [&](const Json& e) {
    EXPECT_TRUE(within(e)) << e;
    const auto begin = open.find(e.at("id"));
    ASSERT_NE(begin, open.end()) << e;
    EXPECT_EQ(begin->second.at("name"), e.at("name"));
    EXPECT_EQ(begin->second.at("cat"), e.at("cat"));
    EXPECT_NE(begin->second.at("tid"), e.at("tid"));
    EXPECT_LE(begin->second.at("ts").get<double>(), e.at("ts").get<double>());
    open.erase(begin);
  });
  EXPECT_TRUE(open.empty());
  std::map<std::string, double> times;
  Each(trace, "C", [&](const Json& e) {
    const double time = e.at("ts");
    auto& last = times[e.at("name")];
    EXPECT_GE(time, last);
    last = time;
    EXPECT_GE(e.at("args").at("bytes").get<double>(), 0);
  });
}

int Count(const Json& trace, const char* phase) {
  int count = 0;
  Each(trace, phase, [&](const Json&) { ++count; });
  return count;
}

TEST(ChromeTrace, FlowsGoFromWhoMakesAValueToWhoUsesIt) {
  const Json trace = Json::parse(ChromeTrace(ReadPlan(kPlan, "plan"), TraceOf()));
  ExpectWellFormed(trace);
  EXPECT_EQ(Count(trace, "X"), 6);
  std::vector<std::string> flows;
  Each(trace, "s", [&](const Json& e) {
    flows.push_back(e.at("name").get<std::string>() + " " + e.at("tid").dump() + " " +
                    e.at("ts").dump());
  });
  Each(trace, "f", [&](const Json& e) {
    flows.push_back(e.at("tid").dump() + " " + e.at("ts").dump());
  });
  EXPECT_EQ(flows, (std::vector<std::string>{"value 0 0.5", "gradient 1 2.5", "1 1.0", "0 4.0"}));
}

TEST(ChromeTrace, OfEverySchedule) {
  for (const std::string& name : ScheduleNames())
    for (const bool transfers : {false, true}) {
      const int ranks = 4, microbatches = 8, steps = 3;
      const int stages = DefaultStages(name, ranks);
      const StagePlacement placement = ParsePlacement(DefaultPlacement(name), ranks, stages);
      Plan plan = MakeSchedule(name, ranks, stages, microbatches, placement);
      SCOPED_TRACE(name + (transfers ? ", with transfers" : ""));
      if (transfers) plan = Lower(plan, ChainGraph(placement));
      Costs costs;
      for (int s = 0; s < stages; ++s) {
        StageCosts& stage = costs.stages.emplace_back();
        stage.F = 2 + s % 3, stage.I = 3, stage.W = 1, stage.B = 4;
        stage.activation = 5, stage.kept_for_W = 3, stage.output = 10, stage.weights = 100;
      }
      SimulateOptions options;
      options.steps = steps, options.barrier = true;
      const Json trace = Json::parse(ChromeTrace(plan, Simulate(plan, costs, options), &costs));
      ExpectWellFormed(trace);
      int apart = 0;  // stages whose next one is on another rank
      for (int s = 0; s + 1 < stages; ++s)
        apart += placement[static_cast<size_t>(s)] != placement[static_cast<size_t>(s) + 1];
      EXPECT_EQ(Count(trace, "s"), apart * 2 * microbatches * steps);
      std::map<std::string, double> most;
      Each(trace, "C", [&](const Json& e) {
        double& bytes = most[e.at("name")];
        bytes = std::max(bytes, e.at("args").at("bytes").get<double>());
      });
      for (int r = 0; r < ranks; ++r) {
        const RankAccount account = BytesOfRank(plan, r, costs, RecomputeOf(plan));
        double expected = account.start;
        for (const HeldBytes& held : account.actions) expected = std::max(expected, held.most);
        EXPECT_GT(expected, 100);
        EXPECT_EQ(most["memory of rank " + std::to_string(r)], expected);
      }
    }
}

}  // namespace
}  // namespace pipewright
