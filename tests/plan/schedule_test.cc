#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/actions.h"
#include "plan/costs.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/lower.h"
#include "plan/plan_text.h"
#include "plan/simulate.h"
#include "plan/stage_graph.h"
#include "plan/text.h"
#include "plan/validate.h"

namespace pipewright {
namespace {

Costs Uniform(double f, double i, double w, double latency = 0) {
  Costs costs;
  StageCosts stage;
  stage.F = f, stage.I = i, stage.W = w, stage.B = i + w;
  costs.stages = {stage};
  costs.link.latency = latency;
  return costs;
}

Figures Play(const Plan& plan, const Costs& costs) {
  return Measure(plan, costs, Simulate(plan, costs));
}

Plan Make(const std::string& name, int ranks, int microbatches, int stages = 0) {
  return MakeSchedule(name, ranks, stages, microbatches, {});
}

std::string GoldenText(const std::string& file) {
  return ReadFile(std::string(TEST_DIR "/data/schedules/") + file);
}

// From the first F to the W: what a rank holds of stages at most.
int PeakChunks(const Plan& plan) {
  int most = 0;
  for (const auto& actions : plan.ranks) {
    int held = 0;
    for (const Action& a : actions) {
      held += HasForward(a);
      most = std::max(most, held);
      held -= a.kind == ActionKind::kWeightGrad || a.kind == ActionKind::kBackward ||
              a.kind == ActionKind::kOverlap;
    }
  }
  return most;
}

TEST(Schedule, GoldenFilesCellForCell) {
  EXPECT_EQ(WritePlan(Make("dualpipev", 4, 10)), GoldenText("dualpipev_4rank_10mb.csv"));
  Plan zb1p = Make("zb1p", 2, 8);
  EXPECT_NE(WritePlan(zb1p), GoldenText("zb1p_2rank_2stagep_compute.csv"));
  zb1p.layout.input_grad_as_b = true;  // the file's older spelling
  EXPECT_EQ(WritePlan(zb1p), GoldenText("zb1p_2rank_2stagep_compute.csv"));
}

TEST(Schedule, ZeroBubbleClosedForms) {
  for (int p = 1; p <= 6; ++p)
    for (int m : {2 * p, 2 * p + 1, 3 * p, 5 * p})
      for (auto [f, i, w, c] :
           {std::array<int, 4>{1, 1, 1, 0}, {5, 4, 3, 1}, {7, 9, 4, 2}, {10, 10, 10, 5}}) {
        Costs costs = Uniform(f, i, w, c);
        int work = m * (f + i + w);
        EXPECT_EQ(Play(Make("zb-h1", p, m), costs).makespan,
                  work + (p - 1) * (f + i - w) + 4 * (p - 1) * c);
        EXPECT_EQ(Play(Make("zb-h2", p, m), costs).span,
                  work + (p - 1) * (f + i - 2 * w) + 2 * (p - 1) * c);
      }
}

TEST(Schedule, VShapesGiveThePublishedIntegers) {
  Json data = ReadJson(TEST_DIR "/data/schedules/dualpipe_vshape.json");
  ASSERT_EQ(data["v_unit"].size(), 8u);
  Costs costs = Uniform(1, 1, 1);
  for (const Json& row : data["v_unit"]) {
    int p = row["p"], m = row["m"];
    Plan v_min = Make("v-min", p, m), v_half = Make("v-half", p, m), zbv = Make("zbv", p, m);
    EXPECT_EQ(Play(v_min, costs).span, row["vmin_span"]) << p;
    EXPECT_EQ(PeakChunks(v_min), row["vmin_peak_chunks"]) << p;
    EXPECT_EQ(Play(v_half, costs).span, row["vhalf_span"]) << p;
    EXPECT_EQ(PeakChunks(v_half), row["vhalf_peak_chunks"]) << p;
    EXPECT_EQ(Play(zbv, costs).span, row["zbv_span"]) << p;
    EXPECT_LE(PeakChunks(zbv), 2 * p);
    EXPECT_EQ(Play(Make("1f1b", p, m), Uniform(2, 2, 2)).makespan,
              row["one_f1b_makespan_same_units"]);
  }
}

TEST(Schedule, DualPipesGiveThePublishedIntegers) {
  Json data = ReadJson(TEST_DIR "/data/schedules/dualpipe_vshape.json");
  for (const char* name : {"dualpipe", "dualpipev"})
    for (const Json& row : data[name]) {
      Costs costs = Uniform(row["F"], row["I"], row["W"]);
      costs.stages[0].overlap = row["FandB"];
      int ranks = row.contains("PP") ? row["PP"] : row["ranks"];
      Plan plan = Make(name, ranks, row["microbatches"]);
      Figures figures = Play(plan, costs);
      EXPECT_EQ(figures.makespan, row["makespan"]) << name << row.dump();
      ASSERT_EQ(row["idle_per_rank"].size(), figures.ranks.size());
      for (size_t r = 0; r < figures.ranks.size(); ++r)
        EXPECT_EQ(figures.ranks[r].idle, row["idle_per_rank"][r]) << name << row.dump();
      EXPECT_EQ(PeakChunks(plan), row["peak_chunk_activations"]) << name << row.dump();
    }
}

TEST(Schedule, InterleavedAnyNumberOfChunks) {
  for (int p = 1; p <= 5; ++p)
    for (int v = 1; v <= 4; ++v)
      for (int m : {p, 2 * p, 4 * p})
        EXPECT_EQ(Play(Make("interleaved", p, m, p * v), Uniform(2, 3, 1)).makespan,
                  m * v * 6 + (p - 1) * 6);
}

TEST(Schedule, ChimeraPublished) {
  EXPECT_EQ(Play(Make("chimera", 4, 4), Uniform(1, 1, 0)).makespan, 10);
  EXPECT_EQ(Play(Make("chimera", 4, 4), Uniform(1, 1, 1)).makespan, 16);
  EXPECT_EQ(Play(Make("chimera", 8, 8), Uniform(1, 1, 0)).makespan, 22);
  EXPECT_EQ(Play(Make("chimera", 8, 8), Uniform(1, 1, 1)).makespan, 36);
}

TEST(Schedule, HanayoNoWorseThanPublished) {
  int published[2][3] = {{36, 61, 109}, {76, 126, 222}};
  for (int k = 0; k < 2; ++k)
    for (int waves : {1, 2, 4}) {
      int p = k ? 8 : 4;
      EXPECT_LE(Play(Make("hanayo", p, p, 2 * waves * p), Uniform(1, 1, 1)).makespan,
                published[k][waves / 2]);
    }
}

TEST(Schedule, EveryNameIsValidForSmallNumbers) {
  for (const std::string& name : ScheduleNames()) {
    int accepted = 0;
    for (int p = 1; p <= 5; ++p)
      for (int s = p; s <= 4 * p; ++s)
        for (int m = 1; m <= 11; ++m)
          for (bool forward_only : {false, true}) {
            Plan schedule;
            try {
              schedule = MakeSchedule(name, p, s, m, {}, {.forward_only = forward_only});
            } catch (const Error&) {
              continue;
            }
            ++accepted;
            SCOPED_TRACE(name + " " + std::to_string(p) + " " + std::to_string(s) + " " +
                         std::to_string(m));
            StageGraph graph = ChainGraph(ParsePlacement(DefaultPlacement(name), p, s));
            ASSERT_NO_THROW(ValidateSchedule(schedule, graph));
            ASSERT_NO_THROW(Validate(Lower(schedule, graph), graph));
          }
    EXPECT_GT(accepted, 0) << name;
  }
}

}  // namespace
}  // namespace pipewright
