#include "plan/simulate/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "plan/simulate/lower_bound.h"
#include "tests/error_text.h"
#include "tests/plan/schedules/order_lists.h"

namespace pipewright {
namespace {

using orders::Uniform;

Figures FiguresOf(const Plan& plan, const Costs& costs, const SimulateOptions& options = {}) {
  Figures figures = Measure(plan, costs, Simulate(plan, costs, options), options);
  LowerBound bound = BoundOf(plan, costs, kNoLimit, options.steps, options.recompute);
  EXPECT_LE(bound.makespan, figures.makespan * (1 + 1e-12));
  EXPECT_LE(bound.span, figures.span * (1 + 1e-12));
  return figures;
}

Plan Golden(const char* file) {
  std::string path = std::string(TEST_DIR "/data/schedules/") + file;
  return ReadPlan(ReadFile(path), path);
}

TEST(Simulate, ClosedForms) {
  std::mt19937 random(1);
  auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  for (int n = 0; n < 300; ++n) {
    int p = pick(2, 8), F = pick(1, 30), I = pick(1, 30), W = pick(1, 30), c = pick(0, 20);
    int m = p * pick(2, 5);
    int work = F + I + W;
    EXPECT_EQ(FiguresOf(orders::GPipe(p, m + 1), Uniform(F, I, W, c)).makespan,
              (m + 1 + p - 1) * work + 2 * (p - 1) * c);
    EXPECT_EQ(FiguresOf(orders::OneFOneB(p, m), Uniform(F, I, W, c)).makespan,
              (m + p - 1) * work + c * (2 * (p - 1) * (m / p) + 2 * (p - 2)));
    int least = std::min(F, I);
    W = pick(1, least), work = F + I + W;
    c = pick(0, W / 2);
    EXPECT_EQ(FiguresOf(orders::ZeroBubble(p, m, 1), Uniform(F, I, W, c)).makespan,
              m * work + (p - 1) * (F + I - W) + 4 * (p - 1) * c);
    c = pick(0, (F + I) / 2);
    EXPECT_EQ(FiguresOf(orders::ZeroBubble(p, m, 2), Uniform(F, I, W, c)).span,
              m * work + (p - 1) * (F + I - 2 * W) + 2 * (p - 1) * c);
  }
}

// Two towers: their edges to the third stage are not those of a chain.
TEST(Simulate, BoundsOfPlansThatAreNotChains) {
  Costs costs;
  for (const double work : {10, 10, 1}) {
    StageCosts& c = costs.stages.emplace_back();
    c.F = work;
  }
  EXPECT_EQ(FiguresOf(ReadPlan("0F0,2RECV_F0<1,2F0\n1F0,1SEND_F0>2\n", "plan"), costs).makespan,
            11);
  // The first rank's forward need not come before that of the second.
  costs.stages[0].F = costs.stages[0].I = costs.stages[0].activation = 1;
  costs.stages[1].F = 10;
  costs.stages[2].F = costs.stages[2].I = 1;
  for (StageCosts& c : costs.stages) c.B = c.I;
  const Plan late = ReadPlan(
      "0F0,0SEND_F0>2,0RECV_B0<2,0B0,0F1,0SEND_F1>2,0RECV_B1<2,0B1\n"
      "1F0,1SEND_F0>2,1F1,1SEND_F1>2,1RECV_B0<2,1B0,1RECV_B1<2,1B1\n"
      "2RECV_F0<0,2RECV_F0<1,2F0,2B0,2SEND_B0>0,2SEND_B0>1,2RECV_F1<0,2RECV_F1<1,2F1,2B1,2SEND_B1>"
      "0,"
      "2SEND_B1>1\n",
      "plan");
  const Figures figures = FiguresOf(late, costs);
  EXPECT_EQ(figures.ranks[0].peak_bytes, 1);
  EXPECT_LE(BoundOf(late, costs, 1).span, figures.span);
}

TEST(Simulate, InterleavedClosedForms) {
  for (int p : {4, 8})
    for (int v : {2, 3, 4})
      for (int m : {p, 2 * p, 4 * p}) {
        Plan plan = orders::Interleaved(p, m, v);
        double share = v * (7 + 5 + 3);
        EXPECT_EQ(FiguresOf(plan, Uniform(7, 5, 3)).makespan, m * share + (p - 1) * share / v);
        Costs costs = Uniform(700, 700, 300, 1);
        share = v * 1700;
        EXPECT_EQ(FiguresOf(plan, costs).makespan,
                  m * share + (p - 1) * share / v + (2 * p * v - 2) * 1);
      }
}

TEST(Simulate, NoIdleTimeIsNegative) {
  for (const RankFigures& rank : FiguresOf(orders::OneFOneB(2, 2), Uniform(0.9, 0.75, 0.75)).ranks) {
    EXPECT_GE(rank.idle, 0);
    EXPECT_FALSE(std::signbit(rank.span_bubble_rate())) << rank.span_bubble_rate();
  }
}

TEST(Simulate, PublishedRows) {
  std::string path = TEST_DIR "/data/schedules/zero_bubble_rows.json";
  Json rows = ReadJson(path);
  for (const char* table : {"iclr", "arxiv"})
    for (const Json& row : rows[table]) {
      int p = row["p"], m = row["m"], v = row["v_interleave"];
      double F = row["F"], I = row["B"], W = row["W"], c = row["comm"];
      EXPECT_EQ(FiguresOf(orders::OneFOneB(p, m), Uniform(F, I, W, c)).makespan, row["T_1F1B"]);
      EXPECT_EQ(FiguresOf(orders::ZeroBubble(p, m, 1), Uniform(F, I, W, c)).makespan,
                row["T_ZBH1"]);
      EXPECT_EQ(FiguresOf(orders::ZeroBubble(p, m, 2), Uniform(F, I, W, c)).span, row["span_ZBH2"]);
      Figures found = FiguresOf(orders::Interleaved(p, m, v), Uniform(F / v, I / v, W / v, c));
      EXPECT_NEAR(found.makespan, row["T_I1F1B_exact"].get<double>(), 1e-3);
      EXPECT_NEAR(1 - row["ideal"].get<double>() / found.makespan,
                  row["bubble_rates"]["I1F1B_exact"].get<double>(), 5e-5);
    }
}

TEST(Simulate, GoldenFiles) {
  Plan zb1p = Golden("zb1p_2rank_2stagep_compute.csv");
  Figures unit = FiguresOf(zb1p, Uniform(1, 1, 1));
  EXPECT_EQ(unit.ranks[0].last, 49);
  EXPECT_EQ(unit.ranks[1].last, 49);
  EXPECT_EQ(unit.ranks[0].span, 49);
  EXPECT_EQ(unit.ranks[1].span, 48);
  EXPECT_EQ(unit.ranks[0].busy, 48);
  Figures skewed = FiguresOf(zb1p, Uniform(2, 2, 1));
  EXPECT_EQ(skewed.ranks[0].last, 83);
  EXPECT_EQ(skewed.ranks[1].last, 82);
  EXPECT_EQ(skewed.ranks[1].busy, 80);
}

TEST(Simulate, DualPipeVPairs) {
  Plan plan = Golden("dualpipev_4rank_10mb.csv");
  Json cases = ReadJson(TEST_DIR "/data/schedules/dualpipe_vshape.json");
  int seen = 0;
  for (const Json& one : cases["dualpipev"]) {
    if (one["ranks"] != 4 || one["microbatches"] != 10) continue;
    Costs costs = Uniform(one["F"], one["I"], one["W"]);
    costs.stages[0].overlap = one["FandB"];
    Figures figures = FiguresOf(plan, costs);
    EXPECT_EQ(figures.makespan, one["makespan"]);
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(figures.ranks[r].idle, one["idle_per_rank"][r]);
      EXPECT_LE(figures.ranks[r].peak_activations, one["peak_chunk_activations"]);
    }
    EXPECT_EQ(figures.ranks[0].peak_activations, one["peak_chunk_activations"]);
    ++seen;
  }
  EXPECT_EQ(seen, 4);
}

TEST(Simulate, MemoryFollowsTheActions) {
  Costs costs = Uniform(1, 1, 1);
  costs.stages[0].activation = 10, costs.stages[0].kept_for_W = 4, costs.stages[0].weights = 100;
  Figures one = FiguresOf(orders::OneFOneB(4, 8), costs);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(one.ranks[r].peak_activations, 4 - r);
    EXPECT_EQ(one.ranks[r].peak_bytes, 100 + 10 * (4 - r));
  }
  // 10 10 -> I leaves 4: 14, F: 24, I: 18, W: 14, W: 10
  Figures two = FiguresOf(ReadPlan("0F0,0F1,0I0,0F2,0I1,0W0,0W1,0B2\n", "plan"), costs);
  EXPECT_EQ(two.ranks[0].peak_bytes, 124);
  EXPECT_EQ(two.ranks[0].peak_activations, 2);
}

// A message counts from its RECV to the F (or B) that uses it, which counts it from then on.
TEST(Simulate, MemoryCountsMessagesFromTheirReceive) {
  Plan plan = ReadPlan(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      "plan");
  Costs costs = ParseCosts(R"({"stages": [
      {"F": 1, "I": 1, "W": 1, "activation": 10, "weights": 100},
      {"F": 1, "I": 1, "W": 1, "activation": 7, "weights": 100}],
      "edges": [{"from": 0, "to": 1, "bytes": 5, "back": 3}]})",
                           "costs");
  Figures figures = FiguresOf(plan, costs);
  EXPECT_EQ(figures.ranks[0].held_bytes, 100);
  EXPECT_EQ(figures.ranks[0].peak_bytes, 100 + 10 + 10 + 3);
  EXPECT_EQ(figures.ranks[1].peak_bytes, 100 + 5 + 7);  // one input waits while the other is used
}

TEST(Simulate, MemoryCountsWhatActionsTakeForAMoment) {
  Plan plan = ReadPlan("0F0,0F1,0B0,0B1,0STEP\n", "plan");
  const std::string stage = R"("F": 1, "I": 1, "W": 1, "activation": 10)";
  auto peak = [&](const std::string& more) {
    Costs costs = ParseCosts("{\"stages\": [{" + stage + more + "}]}", "costs");
    return FiguresOf(plan, costs).ranks[0].peak_bytes;
  };
  EXPECT_EQ(peak(""), 20);
  EXPECT_EQ(peak(R"(, "peak": {"F": 12})"), 22);
  EXPECT_EQ(peak(R"(, "peak": {"B": 15})"), 25);
  EXPECT_EQ(peak(R"(, "peak": {"B": 15}, "gradients": 2)"), 25);   // the first B makes them
  EXPECT_EQ(peak(R"(, "peak": {"B": 15}, "gradients": 12)"), 27);  // the second B beside them
  EXPECT_EQ(peak(R"(, "peak": {"B": 15, "first_B": 11}, "gradients": 2)"), 21);  // the first
  EXPECT_EQ(peak(R"(, "peak": {"B": 15, "first_B": 11}, "gradients": 7)"), 22);  // the second
  EXPECT_EQ(peak(R"(, "gradients": 12, "peak": {"step": 30})"), 42);
}

// The same for halves, even if they keep more than there was.
TEST(Simulate, MemoryOfHalvesMayGrow) {
  Costs costs = ParseCosts(R"({"stages": [{"F": 1, "I": 1, "W": 1, "activation": 4,
      "kept_for_W": 6, "peak": {"I": 9, "W": 8}, "recompute": {"activation": 5,
      "peak": {"I": 11, "B": 20}}}]})",
                           "costs");
  Plan plan = ReadPlan("0F0,0I0,0W0\n", "plan");
  EXPECT_EQ(FiguresOf(plan, costs).ranks[0].peak_bytes, 9);
  EXPECT_EQ(FiguresOf(ReadPlan("0F0,0F1,0I0,0I1,0W0,0W1\n", "plan"), costs).ranks[0].peak_bytes,
            6 + 9);
  SimulateOptions again;
  again.recompute = {1};
  EXPECT_EQ(FiguresOf(plan, costs, again).ranks[0].peak_bytes, 11);
  costs = ParseCosts(R"({"stages": [{"F": 1, "I": 1, "W": 1, "activation": 4,
      "kept_for_W": 6, "recompute": {"activation": 5, "peak": 20}}]})",
                     "costs of earlier versions");
  EXPECT_EQ(FiguresOf(plan, costs, again).ranks[0].peak_bytes, 20);
  Costs first = ParseCosts(R"({"stages": [{"F": 1, "I": 1, "W": 1, "activation": 4,
      "kept_for_W": 6, "gradients": 3, "peak": {"W": 8, "first_W": 12}}]})",
                           "costs");
  EXPECT_EQ(FiguresOf(plan, first).ranks[0].peak_bytes, 12);
  EXPECT_EQ(FiguresOf(ReadPlan("0F0,0I0,0F1,0I1,0W0,0W1\n", "plan"), first).ranks[0].peak_bytes,
            6 + 12);
}

TEST(Simulate, RecomputeLengthensBackwardAndShrinksMemory) {
  Costs costs = Uniform(2, 3, 1);
  costs.stages[0].activation = 10;
  costs.stages[0].recompute = 2, costs.stages[0].checkpoint = 1;
  SimulateOptions options;
  options.recompute = {1, 1};
  Figures figures = FiguresOf(orders::GPipe(2, 4), costs, options);
  EXPECT_EQ(figures.makespan, (4 + 1) * (2 + 3 + 1 + 2));
  EXPECT_EQ(figures.ranks[0].peak_bytes, 4 - 1 + 10);  // one of the four is whole at a time
}

TEST(Simulate, TransfersAndComputeOnlyAgree) {
  Costs costs = Uniform(3, 2, 1, 2);
  costs.stages[0].output = 8, costs.link.bandwidth = 4;
  std::string with =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";
  std::string without = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  ActionTrace one = Simulate(ReadPlan(with, "with"), costs);
  ActionTrace two = Simulate(ReadPlan(without, "without"), costs);
  ASSERT_EQ(one.ranks.size(), two.ranks.size());
  for (size_t r = 0; r < one.ranks.size(); ++r)
    for (size_t i = 0; i < one.ranks[r].size(); ++i) {
      EXPECT_EQ(one.ranks[r][i].start, two.ranks[r][i].start);
      EXPECT_EQ(one.ranks[r][i].end, two.ranks[r][i].end);
    }
  EXPECT_EQ(one.ranks[1][0].start, 3 + 2 + 2);
}

TEST(Simulate, ContentionQueuesBytesNotLatency) {
  Costs costs = Uniform(1, 1, 1, 5);
  costs.stages[0].output = 8, costs.link.bandwidth = 2;  // 4 to put on the wire, then 5
  Plan plan = ReadPlan("0F0,0F1,0F2\n1F0,1F1,1F2\n", "plan");
  SimulateOptions options;
  options.contention = true;
  ActionTrace trace = Simulate(plan, costs, options);
  EXPECT_EQ(trace.ranks[1][0].start, 1 + 4 + 5);
  EXPECT_EQ(trace.ranks[1][1].start, 1 + 8 + 5);
  EXPECT_EQ(trace.ranks[1][2].start, 1 + 12 + 5);
  EXPECT_EQ(Simulate(plan, costs).ranks[1][1].start, 2 + 4 + 5);
}

TEST(Simulate, SynchronousSendsWaitForTheReceive) {
  // Rank 1 posts the receive of 0F0 only after its own long forward.
  Plan plan = ReadPlan("0F0,0SEND_F0>2,0F1,0SEND_F1>2\n1F0,2RECV_F0<0,2F0,2RECV_F1<0,2F1\n", "p");
  Costs costs;
  costs.stages.resize(3);
  for (int s = 0; s < 3; ++s) costs.stages[s].F = s == 1 ? 10 : 1;
  SimulateOptions options;
  options.synchronous = true;
  ActionTrace trace = Simulate(plan, costs, options);
  EXPECT_EQ(trace.ranks[0][1].start, 10);
  EXPECT_EQ(Simulate(plan, costs).ranks[0][1].start, 1);
  // Both send first, before the other one has posted its receive.
  Plan crossed = ReadPlan("0F0,0SEND_F0>2,1RECV_F0<3,1F0\n3F0,3SEND_F0>1,2RECV_F0<0,2F0\n", "p");
  costs.stages.resize(4);
  EXPECT_NO_THROW(Simulate(crossed, costs));
  EXPECT_THROW(Simulate(crossed, costs, options), Error);
  // On one rank nothing is sent; a schedule for several ranks does not define when.
  EXPECT_EQ(Simulate(ReadPlan("0F0,1F0\n", "p"), Uniform(1, 1, 1), options).ranks[0][1].start, 1);
  EXPECT_THROW(Simulate(ReadPlan("0F0\n1F0\n", "p"), Uniform(1, 1, 1), options), Error);
}

TEST(Simulate, StepsGoOnWithoutABarrier) {
  Plan plan = orders::ZeroBubble(3, 12, 2);
  Costs costs = Uniform(1, 1, 1);
  double once = FiguresOf(plan, costs).makespan;
  SimulateOptions options;
  options.steps = 3;
  double free = FiguresOf(plan, costs, options).makespan;
  options.barrier = true;
  EXPECT_EQ(FiguresOf(plan, costs, options).makespan, 3 * once);
  EXPECT_EQ(free, 3 * 12 * 3 + (once - 12 * 3));  // the slant is paid once
}

TEST(Simulate, CriticalPathIsUnbroken) {
  Plan plan = orders::ZeroBubble(4, 9, 1);
  Costs costs = Uniform(5, 4, 3, 1);
  ActionTrace trace = Simulate(plan, costs);
  double end = 0;
  for (const EventId& id : CriticalPath(trace)) {
    const TimedAction& event = trace.ranks[id.rank][id.event];
    EXPECT_TRUE(event.start == end || event.start == end + 1) << event.start << " after " << end;
    end = event.end;
  }
  EXPECT_EQ(end, Measure(plan, costs, trace).makespan);
}

TEST(Simulate, OneStagesCostsOnOneRank) {
  Costs costs = ParseCosts(
      R"({"stages": [{"F": 1, "I": 1, "W": 1}, {"F": 1, "I": 1, "W": 1, "ranks": {"1": {"F": 4}}}],
          "link": {"latency": 1}, "links": [{"from": 1, "to": 0, "latency": 3}]})",
      "costs");
  ActionTrace trace = Simulate(ReadPlan("0F0,0B0\n1F0,1B0\n", "plan"), costs);
  EXPECT_EQ(trace.ranks[1][0].end, 1 + 1 + 4);
  EXPECT_EQ(trace.ranks[0][1].start, 6 + 2 + 3);
}

TEST(Simulate, Refusals) {
  Costs costs = Uniform(1, 1, 1);
  auto run = [&](const char* text) {
    return ErrorOf([&] { Simulate(ReadPlan(text, "plan"), costs); });
  };
  EXPECT_NE(run("0B0,0F0\n").find("rank 0, action 0, 0B0: comes before the forward"),
            std::string::npos);
  EXPECT_NE(run("0F0,0F0\n").find("rank 0, action 1, 0F0: this forward appears twice"),
            std::string::npos);
  EXPECT_NE(run("0F0,0W0,0I0\n").find("rank 0, action 1, 0W0: comes before the I"),
            std::string::npos);
  EXPECT_NE(run("0F0,0B0\n1F1,1F0,1B0\n").find("deadlock"), std::string::npos);
  EXPECT_EQ(run("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"),
            "rank 0, action 1, 0B0: rule \"deadlock\": the order can never finish: "
            "rank 0, action 1, 0B0 waits for rank 1, action 3, 1B0; "
            "rank 1, action 0, 1F1 waits for rank 0, action 2, 0F1");
  costs.stages.resize(3);
  EXPECT_NE(run("0F0,0B0\n1F0,1B0\n").find("stages: 3 entries, but the plan has 2 stages"),
            std::string::npos);
}

TEST(Costs, DefaultsAndErrors) {
  Costs costs = ParseCosts(R"({"stages": [{"F": 1, "I": 2, "W": 4}]})", "c.json");
  EXPECT_EQ(costs.stages[0].B, 6);
  EXPECT_EQ(costs.stages[0].activation, 1);
  EXPECT_EQ(costs.stages[0].kept_for_W, 0);
  EXPECT_EQ(TransferTime(costs, 0, 1, 100), 0);
  auto refuse = [](const char* text) { return ErrorOf([&] { ParseCosts(text, "c.json"); }); };
  EXPECT_NE(refuse(R"({"stages": [{"F": 1, "I": 1}]})").find("c.json: stages[0]: needs \"W\""),
            std::string::npos);
  EXPECT_NE(refuse(R"({"stages": [{"F": -1, "I": 1, "W": 1}]})").find("stages[0].F"),
            std::string::npos);
  EXPECT_NE(refuse(R"({"stages": [{"F": 1, "I": 1, "W": 1, "activations": 2}]})")
                .find("did you mean \"activation\"?"),
            std::string::npos);
  EXPECT_NE(refuse(R"({"stages": []})").find("at least one"), std::string::npos);
  EXPECT_NE(refuse(R"({"stages": [{"F": 1, "I": 1, "W": 1}], "link": {"bandwidth": 0}})")
                .find("must be > 0"),
            std::string::npos);
}

TEST(Trace, TextAndChrome) {
  Plan plan = ReadPlan("0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1B1\n", "plan");
  ActionTrace trace = Simulate(plan, Uniform(1, 1, 1));
  EXPECT_EQ(TextTimeline(plan, trace, 80),
            "rank 0  01..iw.bb\n"
            "rank 1  .0bb1bb\n");
  Json chrome = ParseJson(ChromeTrace(plan, trace), "trace");
  int complete = 0;
  for (const Json& event : chrome["traceEvents"]) complete += event["ph"] == "X";
  EXPECT_EQ(complete, 9);
}

TEST(Simulate, StepsTakeWhatTheCostsSay) {
  Plan plan = ReadPlan("0F0,0B0,0STEP\n1F0,1B0,1STEP\n", "plan");
  Costs costs = ParseCosts(
      R"({"stages": [{"F": 1, "I": 1, "W": 1, "step": 3}, {"F": 1, "I": 1, "W": 1}]})", "costs");
  Figures one = FiguresOf(plan, costs);
  EXPECT_EQ(one.makespan, 9);  // F, F, B, B, STEP
  EXPECT_EQ(one.ranks[0].busy, 6);
  EXPECT_EQ(one.ranks[1].last, 4);
  EXPECT_EQ(Simulate(plan, costs).ranks[1].size(), 2u);  // a STEP that takes nothing: no event
  SimulateOptions twice;
  twice.steps = 2;
  EXPECT_EQ(FiguresOf(plan, costs, twice).makespan, 18);
  EXPECT_EQ(TextTimeline(plan, Simulate(plan, costs), 9), "rank 0  0...bbsss\nrank 1  .0bb\n");
}

}  // namespace
}  // namespace pipewright
