// Compares what the commands for plans print with plans that are worked out by hand.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "cli/commands/simulate_report.h"
#include "cli/commands/validate_plan.h"
#include "cli/commands/zb_auto_plan.h"
#include "plan/plan_text.h"
#include "plan/simulate/simulate.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string File(const std::string& name, const std::string& text) {
  std::ofstream(TempPath(name)) << text;
  return TempPath(name);
}

// F takes 1 and B 2. Rank 1 runs 1F0 from 1 to 2 and 1B0 to 4; rank 0 then runs 0B0 to 6.
TEST(SimulateReport, ReportsHandComputedFigures) {
  const Plan plan = ReadPlan("0F0,0B0\n1F0,1B0\n", "p.csv");
  const Costs costs = UnitCosts();
  const ActionTrace trace = Simulate(plan, costs);
  const Figures figures = Measure(plan, costs, trace);
  const Json json = FiguresJson(plan, trace, figures, std::nullopt);
  EXPECT_EQ(json["makespan"].dump(), "6") << "whole, without a decimal point";
  EXPECT_EQ(json["ranks"][0]["idle"], 3);
  EXPECT_EQ(json["ranks"][1]["first"], 1);
  EXPECT_EQ(json["ranks"][1]["last"], 4);
  EXPECT_EQ(json["ranks"][0]["bubble_rate"], 0.5);
  EXPECT_EQ(json["ranks"][1]["peak_activations"], 1);
  std::string path;
  for (const Json& action : json["critical_path"])
    path += action["action"].get<std::string>() + " ";
  EXPECT_EQ(path, "0F0 1F0 1B0 0B0 ") << json.dump(1);
  const Json bounded = FiguresJson(plan, trace, figures, LowerBound{5.5, 4});
  EXPECT_NE(bounded.dump().find("5.5"), std::string::npos);
}

TEST(ValidatePlan, PrintsPeaksAndNamesTheAction) {
  const std::string path = File("plan.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  ValidateRequest request;
  request.file = path;
  request.compute_only = true;
  testing::internal::CaptureStdout();
  ValidatePlan(request);
  std::fflush(stdout);
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_NE(out.find(path + ": valid: 2 ranks, 2 stages, 2 microbatches\n"), std::string::npos);
  EXPECT_NE(out.find("    0            2            0        0\n"), std::string::npos) << out;
  EXPECT_NE(out.find("    1            1            0        0\n"), std::string::npos) << out;
  request.memory = 1;  // an activation is one byte: 0F1 is one too many
  EXPECT_EQ(ErrorOf([&] { ValidatePlan(request); }),
            path + ": rank 0, action 1, 0F1: rule \"memory\": the rank holds 2, more than 1");
  request.memory = 2;
  testing::internal::CaptureStdout();
  EXPECT_EQ(ErrorOf([&] { ValidatePlan(request); }), "");
  testing::internal::GetCapturedStdout();
}

TEST(ValidatePlan, CountsThings) {
  Plan plan;
  plan.ranks.resize(1), plan.stages = 4, plan.microbatches = 8;
  EXPECT_EQ(Numbers(plan), "1 rank, 4 stages, 8 microbatches");
  plan.ranks.resize(2), plan.stages = 1, plan.microbatches = 1, plan.steps = 3;
  plan.forward_only = true;
  EXPECT_EQ(Numbers(plan), "2 ranks, 1 stage, 1 microbatch, 3 steps, forward only");
  plan.notes = {"one", "two"};
  testing::internal::CaptureStderr();
  PrintNotes(plan);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "one\ntwo\n");
}

// Two ranks and four microbatches, with F, I and W of 1 each: each rank works for 12 units.
TEST(ZbAutoPlan, FindsTheOptimumAndNamesWhatIsMissing) {
  ZbRequest request;
  EXPECT_TRUE(ErrorOf([&] { PlanZbAuto(request); }).starts_with("--ranks: is required"));
  request.ranks = 2;
  EXPECT_TRUE(ErrorOf([&] { PlanZbAuto(request); }).starts_with("--microbatches: is required"));
  request.microbatches = 4;
  EXPECT_TRUE(ErrorOf([&] { PlanZbAuto(request); })
                  .starts_with("--costs: zb-auto needs the times F, I and W of a stage"));
  request.costs = File("costs.json", "{\"stages\": [{\"F\": 1, \"I\": 1, \"W\": 1}]}");
  request.stages = "two";
  EXPECT_EQ(ErrorOf([&] { PlanZbAuto(request); }),
            "--stages: \"two\" is neither a number of stages nor auto");
  request.stages = "auto", request.placement = "0,1";
  EXPECT_EQ(ErrorOf([&] { PlanZbAuto(request); }),
            "--placement: with --stages auto, it must be v or loop, or left out");
  request.stages = "";
  testing::internal::CaptureStderr();
  const Plan plan = PlanZbAuto(request);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Numbers(plan), "2 ranks, 2 stages, 4 microbatches");
  // Rank 1 starts after one F of rank 0, and needs no pause.
  EXPECT_NE(said.find("zb-auto: makespan 13 (lower bound 13)\n"), std::string::npos) << said;
  EXPECT_NE(said.find("zb-auto: span 12 (lower bound 12), bubble of the span 0.00 %\n"),
            std::string::npos)
      << said;
}

}  // namespace
}  // namespace pipewright
