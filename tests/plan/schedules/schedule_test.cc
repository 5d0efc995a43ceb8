#include "plan/schedules/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/plan_text.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/measure.h"
#include "plan/stage_graph.h"
#include "tests/error_text.h"

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

// Returns the most stages of which a rank holds activations, from F to W.
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

TEST(Schedule, ClosedForms) {
  for (int p = 2; p <= 6; ++p)
    for (int k = 2; k <= 4; ++k)
      for (auto [f, i, w, c] :
           {std::array<int, 4>{1, 1, 1, 0}, {5, 4, 3, 1}, {2, 9, 4, 7}, {1, 2, 3, 20}}) {
        Costs costs = Uniform(f, i, w, c);
        int m = k * p;
        EXPECT_EQ(Play(Make("gpipe", p, m), costs).makespan,
                  (m + p - 1) * (f + i + w) + 2 * (p - 1) * c);
        EXPECT_EQ(Play(Make("1f1b", p, m), costs).makespan,
                  (m + p - 1) * (f + i + w) + c * (2 * (p - 1) * (m / p) + 2 * (p - 2)));
      }
}

TEST(Schedule, InterleavedWithSmallLatency) {
  for (int p : {4, 8})
    for (int v : {2, 3, 4})
      for (int m = p; m <= 4 * p; m += p)
        EXPECT_EQ(Play(Make("interleaved", p, m, p * v), Uniform(40, 50, 30, 1)).makespan,
                  m * v * 120 + (p - 1) * 120 + (2 * p * v - 2));
}

// The exact columns of the published tables; the file documents the conventions.
TEST(Schedule, PublishedRows) {
  Json data = ReadJson(TEST_DIR "/data/schedules/zero_bubble_rows.json");
  int rows = 0;
  std::vector<Json> all(data["iclr"].begin(), data["iclr"].end());
  all.insert(all.end(), data["arxiv"].begin(), data["arxiv"].end());
  for (const Json& row : all) {
    int p = row["p"], m = row["m"], v = row["v_interleave"];
    Costs costs = Uniform(row["F"], row["B"], row["W"], row["comm"]);
    EXPECT_EQ(Play(Make("1f1b", p, m), costs).makespan, row["T_1F1B"]);
    EXPECT_EQ(Play(Make("zb-h1", p, m), costs).makespan, row["T_ZBH1"]);
    EXPECT_EQ(Play(Make("zb-h2", p, m), costs).span, row["span_ZBH2"]);
    Costs chunk = costs;
    for (double* t :
         {&chunk.stages[0].F, &chunk.stages[0].I, &chunk.stages[0].W, &chunk.stages[0].B})
      *t /= v;
    EXPECT_NEAR(Play(Make("interleaved", p, m, p * v), chunk).makespan, row["T_I1F1B_exact"], 0.01);
    ++rows;
  }
  EXPECT_EQ(rows, 9);
}

// The published numbers for the golden file: 48 units of work, then 80.
TEST(Schedule, Zb1pGoldenFigures) {
  Figures one = Play(Make("zb1p", 2, 8), Uniform(1, 1, 1));
  EXPECT_EQ(one.ranks[0].last, 49);
  EXPECT_EQ(one.ranks[1].last, 49);
  EXPECT_EQ(one.ranks[0].span, 49);
  EXPECT_EQ(one.ranks[1].span, 48);
  Figures two = Play(Make("zb1p", 2, 8), Uniform(2, 2, 1));
  EXPECT_EQ(two.ranks[0].last, 83);
  EXPECT_EQ(two.ranks[1].last, 82);
}

// If P does not divide M, only the remainder costs extra: the formula holds for any M >= P.
TEST(Schedule, InterleavedAnyNumberOfMicrobatches) {
  for (int p : {2, 3, 4, 5})
    for (int m = p; m <= 3 * p; ++m)
      EXPECT_EQ(Play(Make("interleaved", p, m, 2 * p), Uniform(1, 1, 1)).makespan,
                6 * m + 3 * (p - 1))
          << p << " " << m;
}

// Without > < # and with implied neighbors, as PyTorch writes transfers.
TEST(Schedule, PyTorchsTransfersAreUnderstood) {
  for (const char* name : {"1f1b", "interleaved", "zbv", "zb1p", "dualpipev"}) {
    int stages = DefaultStages(name, 4);
    StageGraph graph = ChainGraph(ParsePlacement(DefaultPlacement(name), 4, stages));
    Plan plan = Lower(Make(name, 4, 8), graph);
    for (auto& actions : plan.ranks)
      for (Action& a : actions) a.peer = a.slot = -1;
    std::string text = WritePlan(plan);
    EXPECT_EQ(text.find('>'), std::string::npos);
    EXPECT_NO_THROW(Validate(ReadPlan(text, "p.csv"))) << text;
  }
}

TEST(Schedule, RefusalsNameTheNumberAndTheNearest) {
  auto refusal = [](const std::string& name, int ranks, int stages, int microbatches,
                    const std::string& placement = "", bool of_run = false) -> std::string {
    return ErrorOf([&] {
      StagePlacement given;
      if (!placement.empty()) given = ParsePlacement(placement, ranks, stages);
      MakeSchedule(name, ranks, stages, microbatches, given, {.of_run = of_run});
    });
  };
  EXPECT_EQ(refusal("1f1b", 4, 3, 8),
            "schedule 1f1b: 3 stages cannot occupy 4 ranks: every rank needs a stage\n"
            "  try --stages 4 or --ranks 3");
  EXPECT_EQ(refusal("zbv", 4, 4, 8),
            "schedule zbv: 4 stages on 4 ranks, and it needs 2 stages per rank\n"
            "  the nearest that works: --stages 8");
  EXPECT_EQ(refusal("dualpipev", 4, 8, 7),
            "schedule dualpipev: 7 microbatches on 4 ranks, and it needs two per rank\n"
            "  the nearest that works: --microbatches 8");
  EXPECT_EQ(refusal("dualpipe", 4, 4, 11),
            "schedule dualpipe: 11 microbatches, and it needs an even number (half per direction)\n"
            "  the nearest that works: --microbatches 12");
  EXPECT_EQ(refusal("chimera", 3, 3, 4),
            "schedule chimera: 3 ranks, and it needs an even number\n"
            "  the nearest that work: --ranks 4 --stages 4, or --ranks 2 --stages 2");
  EXPECT_EQ(refusal("chimera", 3, 0, 4),
            "schedule chimera: 3 ranks, and it needs an even number\n"
            "  the nearest that work: --ranks 4 or 2");
  // The message names all necessary changes at once.
  EXPECT_EQ(refusal("dualpipe", 3, 0, 1),
            "schedule dualpipe: 3 ranks, and it needs an even number\n"
            "  the nearest that work: --ranks 4 --microbatches 8, or --ranks 2 --microbatches 4");
  EXPECT_EQ(refusal("dualpipev", 2, 3, 1, "0,1,1"),
            "schedule dualpipev: 3 stages on 2 ranks, and it needs 2 stages per rank\n"
            "  the nearest that work: --stages 4 --microbatches 4 --placement v");
  EXPECT_EQ(refusal("hanayo", 4, 12, 4),
            "schedule hanayo: 12 stages on 4 ranks, and it needs a multiple of 8\n"
            "  the nearest that works: --stages 16");
  EXPECT_EQ(refusal("zbv", 2, 4, 4, "loop"),
            "schedule zbv: it runs on its own placement only\n"
            "  leave the placement out, or use v");
  EXPECT_EQ(refusal("zbv", 2, 4, 4, "0,1,1,0"), "");
  EXPECT_EQ(refusal("gpipe", 3, 4, 4, "0,1,1,0"),
            "placement: rank 2 runs no stage\n  give every rank a stage, or use --ranks 2");
  EXPECT_EQ(refusal("gpipe", 2, 4, 4, "0,1,2,0"),
            "placement, stage 2: rank 2 is not one of 2 ranks\n  ranks 0 to 1, or --ranks 3");
  EXPECT_EQ(refusal("gpipe", 2, 3, 4, "0,3,5"),
            "placement, stage 1: rank 3 is not one of 2 ranks\n"
            "  ranks 0 to 1, or --placement \"0,1,2\" --ranks 3");
  EXPECT_EQ(refusal("gpipe", 3, 2, 4, "0,2"),
            "placement: rank 1 runs no stage\n"
            "  give every rank a stage, or use --placement \"0,1\" --ranks 2");
  EXPECT_EQ(refusal("gpipe", 3, 3, 4, "both"),
            "placement both: 3 ranks: the middle one would hold a stage twice\n"
            "  the nearest that work: --ranks 4 or 2");
  EXPECT_EQ(refusal("gpipe", 2, 3, 4, "0,1,1,0"),
            "placement \"0,1,1,0\": it gives 4 ranks for 3 stages\n"
            "  give 3 entries, or --stages 4");
  EXPECT_EQ(refusal("gpipe", 2, 4, 4, "2,1,0"),
            "placement \"2,1,0\": it gives 3 ranks for 4 stages\n"
            "  give 4 entries, or --stages 3 --ranks 3");
  // For a run, whose conf and job give the numbers.
  EXPECT_EQ(refusal("zbv", 2, 2, 8, "loop", true),
            "schedule zbv: 2 stages on 2 ranks, and it needs 2 stages per rank\n"
            "  the nearest that works: a conf of 4 stages, on the ranks 0,1,1,0 "
            "(pipewright conf PACKAGE --ranks 2 --stages 4 --placement v)");
  EXPECT_EQ(refusal("zbv", 2, 4, 8, "loop", true),
            "schedule zbv: it runs on its own placement only\n"
            "  use a conf of 4 stages, on the ranks 0,1,1,0 "
            "(pipewright conf PACKAGE --ranks 2 --stages 4 --placement v)");
  EXPECT_EQ(refusal("dualpipev", 2, 4, 3, "v", true),
            "schedule dualpipev: 3 microbatches on 2 ranks, and it needs two per rank\n"
            "  the nearest that works: \"microbatches\": 4 in the job");
  EXPECT_EQ(refusal("chimera", 3, 3, 4, "loop", true),
            "schedule chimera: 3 ranks, and it needs an even number\n"
            "  the nearest that work: a conf for 4 ranks or 2");
  EXPECT_EQ(refusal("1f2b", 2, 2, 4).substr(0, 65),
            "schedule: unknown schedule \"1f2b\" (did you mean \"1f1b\"?)\n  known:");
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

// The closed forms of the published figures hold for numbers that are not published, too.
TEST(Schedule, VShapesOnOtherNumbers) {
  Costs costs = Uniform(1, 1, 1);
  for (int p : {5, 10, 15, 38, 54}) {
    int m = 2 * p + p % 3;
    Plan v_min = Make("v-min", p, m), v_half = Make("v-half", p, m);
    EXPECT_EQ(Play(v_min, costs).span, 6 * m + 4 * p - (p % 3 == 0 ? 7 : 5)) << p;
    EXPECT_EQ(PeakChunks(v_min), 2 * ((p + 4) / 3)) << p;
    EXPECT_EQ(Play(v_half, costs).span, 6 * m + 3 * p - (p % 2 == 0 ? 7 : 4)) << p;
    EXPECT_EQ(PeakChunks(v_half), 2 * ((p + 2) / 2)) << p;
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

// torch.distributed.pipelining's ScheduleLoopedBFS on 2 ranks, 4 stages, 3 microbatches.
TEST(Schedule, LoopedBfsIsPyTorchs) {
  EXPECT_EQ(WritePlan(MakeSchedule("looped-bfs", 2, 4, 3, {})),
            "0F0,0F1,0F2,2F0,2F1,2F2,2B2,2B1,2B0,0B2,0B1,0B0\n"
            "1F0,1F1,1F2,3F0,3F1,3F2,3B2,3B1,3B0,1B2,1B1,1B0\n");
  EXPECT_EQ(WritePlan(MakeSchedule("bfs", 2, 4, 3, {})),
            "0F0,0F1,0F2,2F0,2F1,2F2,2B0,2B1,2B2,0B0,0B1,0B2\n"
            "1F0,1F1,1F2,3F0,3F1,3F2,3B0,3B1,3B2,1B0,1B1,1B2\n");
}

// The message names an entry that was edited by hand.
TEST(Schedule, AnEditedEntryIsNamed) {
  Plan plan = Lower(MakeSchedule("1f1b", 2, 2, 4, {}), ChainGraph({{0}, {1}}));
  std::string text = WritePlan(plan);
  size_t at = text.find(",1F3,");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 5, ",1F9,");
  try {
    Validate(ReadPlan(text, "plan.csv"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "rank 1, action 13, 1F9: rule \"once\": only because of this action the plan has 10 "
              "microbatches, and no rank runs 0F4");
  }
}

}  // namespace
}  // namespace pipewright
