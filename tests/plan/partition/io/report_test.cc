#include "plan/partition/io/report.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/files/read_file.h"
#include "plan/partition/io/profile_problem.h"
#include "plan/partition/step_bound.h"
#include "plan/partition/step_objective.h"

namespace pipewright {

static const std::string kProfiles =
    TEST_DIR "/data/pipedream/profiler/image_classification/profiles/";

static ModelGraph Profile(const std::string& model) {
  std::string path = kProfiles + model + "/graph.txt";
  return ReadGraphText(ReadFile(path), path);
}

static PartitionProblem Problem(const ModelGraph& graph, int stages, ProfileProblem* profile) {
  ProfileCosts costs;
  costs.bandwidth = 1e11;
  *profile = ToProblem(graph, costs);
  PartitionProblem problem = profile->problem;
  problem.devices.resize(1);
  problem.devices[0].count = stages;
  problem.stages = stages;
  problem.in_flight = InFlight::k1F1B;
  return problem;
}

TEST(Report, JsonHasWhatReadersExpect) {
  ModelGraph graph = Profile("vgg16");
  ProfileProblem profile;
  PartitionProblem problem = Problem(graph, 4, &profile);
  PartitionReport report = MakeReport(problem, SolvePartition(problem, {}));
  report.mode = PartitionMode::kExact;
  Json json = ReportJson(report);
  for (const char* key :
       {"feasible", "objective", "lower_bound", "gap", "mode", "seconds", "stages"})
    EXPECT_TRUE(json.contains(key)) << key;
  ASSERT_EQ(json["stages"].size(), 4u);
  double slowest = 0;
  for (const Json& stage : json["stages"]) {
    for (const char* key :
         {"stage", "device", "nodes", "compute", "transfer", "memory", "replicas"})
      EXPECT_TRUE(stage.contains(key)) << key;
    slowest = std::max(slowest, stage["compute"].get<double>() + stage["transfer"].get<double>());
  }
  EXPECT_DOUBLE_EQ(json["objective"], slowest);
  EXPECT_EQ(json["gap"], 0);
}

TEST(Report, AnInfeasibleInstanceIsAnAnswer) {
  ModelGraph graph = Profile("vgg16");
  ProfileProblem profile;
  PartitionProblem problem = Problem(graph, 4, &profile);
  problem.devices[0].memory_bytes = 1;
  PartitionResult result = SolvePartition(problem, {});
  EXPECT_TRUE(result.proven);
  Json json = ReportJson(MakeReport(problem, result));
  EXPECT_EQ(json["feasible"], false);
  EXPECT_TRUE(json["objective"].is_null());
  EXPECT_NE(json["reason"].get<std::string>().find("weights and optimizer state take"),
            std::string::npos);
  EXPECT_EQ(ReportTable(MakeReport(problem, result)).substr(0, 10), "infeasible");
}

// Numbers need not follow the order of execution: 3 feeds 0, which feeds 2; 1 is parallel to them.
TEST(Report, EndsOfAStageAreWhereValuesFlow) {
  PartitionProblem problem;
  problem.nodes.resize(6);
  for (int i = 0; i < 6; ++i) problem.nodes[i].name = "n" + std::to_string(i);
  problem.values = {{3, {0, 1}, 1, 1, 0}, {0, {2}, 1, 1, 0}, {2, {4}, 1, 1, 0}, {5, {3}, 1, 1, 0}};
  problem.nodes[3].device_time = 1;
  problem.nodes[4].backward = true;  // a backward node
  // 5 is a weight.
  problem.devices.resize(1);
  PartitionResult result;
  result.feasible = true;
  result.stages.resize(1);
  result.stages[0].nodes = {0, 1, 2, 3, 4, 5};
  EvaluatePartition(problem, result);
  PartitionReport report = MakeReport(problem, result);
  EXPECT_EQ(report.stages[0].first, "n3");
  EXPECT_EQ(report.stages[0].last, "n2");
  EXPECT_EQ(report.stages[0].nodes.front(), "n0");
  const std::string table = ReportTable(report);
  EXPECT_NE(table.find("first"), std::string::npos);
  EXPECT_NE(table.find(" n3"), std::string::npos) << table;
}

// More stages than devices or nodes: reported at once, however many sets of nodes there are.
TEST(Report, StagesThatCannotBe) {
  PartitionProblem problem;
  problem.nodes.resize(60);
  for (PartitionNode& node : problem.nodes) node.name = "n", node.device_time = 1;
  problem.nodes[0].device_time = 0;
  problem.values.push_back({0, {1}, 1, 2, 0});
  problem.devices.resize(1);
  for (auto [stages, devices, why] : {std::tuple{5, 3, "on 3 devices"},
                                      std::tuple{61, 61, "of 60 nodes"}}) {
    problem.stages = stages;
    problem.devices[0].count = devices;
    PartitionResult result = SolvePartition(problem, {});
    EXPECT_FALSE(result.feasible);
    EXPECT_TRUE(result.proven);
    Json json = ReportJson(MakeReport(problem, result));
    ASSERT_TRUE(json.contains("reason"));
    EXPECT_NE(json["reason"].get<std::string>().find(why), std::string::npos) << json["reason"];
  }
}

TEST(Report, ExplainsInFiguresForPeople) {
  PartitionReport report;
  report.objective = 0.0123456789;
  report.time_unit = "s";
  Explanation e;
  EXPECT_EQ(ExplainText(report, e), "no partition fits the devices\n");
  e.stage = 2;
  e.binds = "transfer";
  EXPECT_EQ(ExplainText(report, e),
            "stage 2 binds: its transfer\nthe next best partition is not known\n");
  e.next_best = report.objective * (1 + 1 / 3.0);
  EXPECT_EQ(ExplainText(report, e),
            "stage 2 binds: its transfer\n"
            "a partition without that stage costs 16.461 ms, 4.115 ms (33.3 %) more\n");
  // A result that is not proven may be improved when the slowest stage is forbidden.
  e.next_best = report.objective * 0.999;
  EXPECT_NE(ExplainText(report, e).find("12.333 ms, 0.012 ms (0.1 %) less\n"), std::string::npos);
  e.next_best = report.objective;
  e.next_best_proven = true;
  EXPECT_NE(ExplainText(report, e).find(
                "the next best partition without that stage costs 12.346 ms, as much\n"),
            std::string::npos);
}

TEST(Report, NeverWorseThanEqualCuts) {
  for (const char* model : {"vgg16", "alexnet", "resnet50", "densenet121"})
    for (int stages : {2, 3, 5, 8})
      for (bool exact : {true, false}) {
        ModelGraph graph = Profile(model);
        ProfileProblem profile;
        PartitionProblem problem = Problem(graph, stages, &profile);
        PartitionResult result = SolvePartition(problem, {exact});
        ASSERT_EQ(CheckPartition(problem, result), "");
        UnitGraph units = BuildUnits(problem, Merge::kNone);
        PartitionResult equal;
        equal.stages.resize(stages);
        for (size_t u = 0; u < units.units.size(); ++u)
          for (int node : units.units[u].nodes)
            equal.stages[u * stages / units.units.size()].nodes.push_back(node);
        EvaluatePartition(problem, equal);
        EXPECT_LE(result.objective, equal.objective * (1 + 1e-12)) << model << stages;
        SetStages(graph, profile, result);
        for (const GraphNode& node : graph.nodes) EXPECT_GE(node.stage, 0);
      }
}

TEST(Report, DotColorsStages) {
  ModelGraph graph = Profile("alexnet");
  for (GraphNode& node : graph.nodes) node.stage = 1;
  std::string dot = GraphDot(graph);
  EXPECT_NE(dot.find("fillcolor=green"), std::string::npos);
  EXPECT_NE(dot.find("\"node2\" -> \"node3\";"), std::string::npos);
}

TEST(Step, OneStageTakesTheSumAndMovesNeverMakeItLonger) {
  ModelGraph graph = Profile("alexnet");
  ProfileProblem profile;
  PartitionProblem problem = Problem(graph, 1, &profile);
  PartitionResult one = SolveStep(problem, {}, {"1f1b", 8});
  double work = 0;
  for (const PartitionNode& node : problem.nodes) work += node.device_time;
  EXPECT_NEAR(one.objective, 8 * work, 1e-9);
  EXPECT_TRUE(one.proven);
  problem = Problem(graph, 3, &profile);
  PartitionResult bottleneck = SolvePartition(problem, {});
  PartitionResult step = SolveStep(problem, {}, {"1f1b", 4});
  EXPECT_LE(step.objective, StepTime(problem, bottleneck, {"1f1b", 4}) * (1 + 1e-12));
  EXPECT_GE(step.objective, step.lower_bound);
  EXPECT_EQ(step.stages.size(), 3u);
}

TEST(Step, ValuesThatSkipStagesTravelStraight) {
  // a feeds b and c, and both feed d; each node a stage.
  PartitionProblem problem;
  for (int i = 0; i < 4; ++i) {
    PartitionNode node;
    node.name = std::to_string(i);
    node.device_time = 3;
    problem.nodes.push_back(node);
  }
  problem.values = {{0, {1, 2}, 0, 2, 0}, {1, {3}, 0, 2, 0}, {2, {3}, 0, 2, 0}};
  problem.devices.resize(1);
  problem.devices[0].count = 4;
  problem.stages = 4;
  PartitionResult result = SolvePartition(problem, {});
  ASSERT_TRUE(result.feasible);
  // b and c run in parallel: three forwards of 1 and three backwards of 2 in sequence, not four.
  EXPECT_NEAR(StepTime(problem, result, {"gpipe", 1}), 9, 1e-9);
  EXPECT_NEAR(StepBound(problem, {"gpipe", 1}), 9, 1e-9);
  problem.values.push_back({1, {2}, 0, 2, 0});
  EXPECT_NEAR(StepTime(problem, result, {"gpipe", 1}), 12, 1e-9);
  Explanation explanation;
  PartitionResult best = SolveStep(problem, {}, {"gpipe", 8}, &explanation);
  EXPECT_GE(best.objective, best.lower_bound);
  EXPECT_GE(explanation.stage, 0);
}

}  // namespace pipewright
