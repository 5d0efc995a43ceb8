#include "formats/profile/profile.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/profile/from_trace.h"
#include "formats/profile/graph.h"
#include "formats/profile/merge.h"
#include "plan/partition/io/profile_problem.h"
#include "plan/partition/io/report.h"
#include "plan/partition/solve.h"
#include "tests/error_text.h"

namespace pipewright {
namespace {

ProfileNode Node(const std::string& name, int module, double forward, double backward) {
  ProfileNode node;
  node.name = name;
  node.module = module;
  node.forward = {forward, forward / 10};
  node.backward = {backward, backward / 10};
  node.input_gradient = {backward / 2, 0};
  node.weight_gradient = {backward / 2, 0};
  node.kept = 100;
  node.parameters = node.trained = 40;
  node.buffers = 8;
  return node;
}

// x -> a -> b -> c, a also feeds c; b and c hold one weight.
Profile Example() {
  Profile profile;
  profile.package = "m.pkg";
  profile.microbatch = 4;
  profile.repeat = 3;
  profile.nodes = {Node("module0", 0, 1e-3, 2e-3), Node("module1", 1, 2e-3, 4e-3),
                   Node("module2", 2, 3e-3, 6e-3)};
  profile.nodes[1].body = "lists";  // unknown for the others
  profile.values = {{"x", -1, {0}, 16, false},
                    {"h", 0, {1, 2}, 32, true},
                    {"i", 0, {2}, 8, false},
                    {"g", 1, {2}, 64, true},
                    {"y", 2, {}, 4, true}};
  profile.shared = {{{1, 2}, 40}};
  profile.links = {{0, 1, 1e-6, 1e9}};
  return profile;
}

std::string ProfileError(const std::string& text) {
  return ErrorOf([&] { ParseProfile(text, "p.json"); });
}

TEST(Profile, JsonReadsBackByteForByte) {
  std::string text = WriteProfile(Example());
  EXPECT_EQ(WriteProfile(ParseProfile(text, "p.json")), text);
  EXPECT_TRUE(IsProfile(ParseJson(text, "p.json")));
}

TEST(Profile, FaultsAreNamedWithTheirPlace) {
  std::string text = WriteProfile(Example());
  auto changed = [&](const std::string& from, const std::string& to) {
    std::string copy = text;
    copy.replace(copy.find(from), from.size(), to);
    return ProfileError(copy);
  };
  EXPECT_NE(changed("\"bytes\": 16.0", "\"bytes\": -1").find("of at least 0"), std::string::npos);
  EXPECT_NE(changed("\"consumers\": [1, 2]", "\"consumers\": [0, 2]").find("nodes after"),
            std::string::npos);
  EXPECT_NE(changed("\"consumers\": [1, 2]", "\"consumers\": [1, 7]").find("from 0 to 2"),
            std::string::npos);
  EXPECT_NE(changed("\"median\"", "\"mean\"").find("\"median\" is missing"), std::string::npos);
  EXPECT_EQ(changed("\"microbatch\": 4", "\"microbatch\": \"4\"").rfind("p.json:4:", 0), 0u);
}

TEST(Profile, GraphTextSaysWhatPipeDreamReads) {
  std::string text = WriteGraphText(GraphOfProfile(Example()));
  EXPECT_EQ(text,
            "input0 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, "
            "activation_size=16.0, parameter_size=0.000\n"
            "module0 -- Module() -- forward_compute_time=1.000, backward_compute_time=2.000, "
            "activation_size=[32.0; 8.0], parameter_size=40.000\n"
            "module1 -- Module() -- forward_compute_time=2.000, backward_compute_time=4.000, "
            "activation_size=64.0, parameter_size=40.000\n"
            "module2 -- Module() -- forward_compute_time=3.000, backward_compute_time=6.000, "
            "activation_size=4.0, parameter_size=40.000\n"
            "\tinput0 -- module0\n\tmodule0 -- module1\n\tmodule0 -- module2\n"
            "\tmodule1 -- module2");
  EXPECT_EQ(WriteGraphText(ReadGraphText(text, "p.txt")), text);
}

TEST(Profile, ModulesArePutTogether) {
  Profile whole;
  whole.values = {{"x", -1, {}, 16, false}};
  Profile first, second;
  first.nodes = {Node("module0.0", 0, 1, 1), Node("module0.1", 0, 1, 1)};
  first.values = {{"x", -1, {0}, 16, false}, {"module0/1", 0, {1}, 8, true}, {"h", 1, {}, 8, true}};
  second.nodes = {Node("module1", 1, 1, 1)};
  second.values = {{"h", -1, {0}, 8, true}, {"x", -1, {0}, 16, false}, {"y", 0, {}, 8, true}};
  AppendModule(whole, first);
  AppendModule(whole, second);
  ASSERT_EQ(whole.nodes.size(), 3u);
  ASSERT_EQ(whole.values.size(), 4u);
  EXPECT_EQ(whole.values[0].consumers, (std::vector<int>{0, 2}));
  EXPECT_EQ(whole.values[2].name, "h");
  EXPECT_EQ(whole.values[2].producer, 1);
  EXPECT_EQ(whole.values[2].consumers, (std::vector<int>{2}));
  EXPECT_EQ(whole.values[3].producer, 2);
}

TEST(Profile, CostsOfAPartitionAreThoseMeasured) {
  ProfileCosts costs;
  costs.bandwidth = 1000;
  PartitionProblem problem = ToProblem(Example(), costs).problem;
  problem.stages = 2;
  DeviceClass device;
  device.count = 2;
  problem.devices = {device};
  PartitionResult result = SolvePartition(problem, {});
  ASSERT_TRUE(result.feasible);
  ASSERT_TRUE(result.proven);
  // {a, b} | {c}: h and g there and back, i there, and the gradient of the shared weight.
  // {a} | {b, c}: h there and back, i there.
  EXPECT_EQ(result.stages[0].nodes, (std::vector<int>{0}));
  EXPECT_NEAR(result.stages[0].transfer, (2 * 32 + 8) / 1000.0, 1e-12);
  EXPECT_NEAR(result.objective, 0.015 + 0.072, 1e-12);
  // Two nodes: weights, gradients, Adam's state (4 x 40) and buffers; what is kept; two receive
  // buffers.
  EXPECT_NEAR(result.stages[1].memory_bytes, 2 * (160 + 8 + 100) + 32 + 8, 1e-9);
}

TEST(Profile, StagesOfAPackageBecomeItsConfs) {
  StageConfs confs = MakeStageConfs({0, 1, 1}, {{4, 5}, {2}});
  EXPECT_EQ(confs.hybrid.module_to_stage, (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(confs.hybrid.stage_to_ranks, (std::vector<std::vector<int>>{{1, 2}, {0}}));
  EXPECT_EQ(confs.mp.stage_to_ranks, (std::vector<std::vector<int>>{{0}, {1}}));
  EXPECT_EQ(confs.dp.module_to_stage, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(confs.dp.stage_to_ranks, (std::vector<std::vector<int>>{{0, 1, 2}}));
}

class Traces : public testing::Test {
 protected:
  Conf conf_;
  Traces() {
    conf_.module_to_stage = {0, 1, 1};
    conf_.stage_to_ranks = {{0}, {1}};
  }
  static std::string Event(const std::string& name, int step, double microseconds) {
    return "{\"name\":\"" + name +
           "\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":0,\"dur\":" + std::to_string(microseconds) +
           ",\"args\":{\"step\":" + std::to_string(step) + "}}";
  }
};

TEST_F(Traces, ReplaceTimesByStage) {
  Profile profile = Example();
  // The first step is warm-up. Stage 1 holds modules 1 and 2, which share its time 2 to 3.
  std::string text = "{\"traceEvents\":[" + Event("0F0", 0, 9e6) + "," + Event("0F0", 1, 100) +
                     "," + Event("0F1", 1, 300) + "," + Event("1F0", 1, 1000) + "," +
                     Event("0I0", 1, 50) + "," + Event("0W0", 1, 70) + "," + Event("1B0", 1, 2000) +
                     "," + Event("0STEP", 1, 5) + "]}";
  ApplyTrace(profile, conf_, text, "t.json");
  EXPECT_NEAR(profile.nodes[0].forward.median, 200e-6, 1e-12);
  EXPECT_NEAR(profile.nodes[0].forward.spread, 100e-6, 1e-12);
  EXPECT_NEAR(profile.nodes[0].backward.median, 120e-6, 1e-12);
  EXPECT_NEAR(profile.nodes[0].input_gradient.median, 50e-6, 1e-12);
  EXPECT_NEAR(profile.nodes[1].forward.median, 400e-6, 1e-12);
  EXPECT_NEAR(profile.nodes[2].forward.median, 600e-6, 1e-12);
  EXPECT_NEAR(profile.nodes[2].backward.median, 1200e-6, 1e-12);
  EXPECT_NEAR(profile.nodes[2].weight_gradient.median, 600e-6, 1e-12);
}

TEST_F(Traces, OfOtherRunsAreRefused) {
  Profile profile = Example();
  for (const char* stage : {"2F0", "0F0"})  // one that is not in the conf, one of two
    EXPECT_THROW(ApplyTrace(profile, conf_, "{\"traceEvents\":[" + Event(stage, 0, 1) + "]}", "t"),
                 Error);
  EXPECT_THROW(ApplyTrace(profile, conf_, "{\"traceEvents\":[]}", "t"), Error);
  EXPECT_THROW(ApplyTrace(profile, conf_, "{}", "t"), Error);
}

}  // namespace
}  // namespace pipewright
