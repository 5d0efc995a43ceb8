#include "plan/partition/io/request.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

using Ints = std::vector<int>;

// Two layers after an input, with a forward of 1 ms and a backward of 2 ms each.
const char kGraph[] =
    "node0 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, "
    "activation_size=8.0, parameter_size=0.000\n"
    "node1 -- Linear(2, 2) -- forward_compute_time=1.000, backward_compute_time=2.000, "
    "activation_size=8.0, parameter_size=24.000\n"
    "node2 -- ReLU() -- forward_compute_time=1.000, backward_compute_time=2.000, "
    "activation_size=8.0, parameter_size=0.000\n"
    "\tnode0 -- node1\n\tnode1 -- node2\n";

PartitionRequest Request() {
  PartitionRequest request;
  request.file = "g.txt";
  request.devices = 3;
  return request;
}

PartitionProblem Problem(const PartitionRequest& request) {
  PartitionInput input;
  input.graph = ReadGraphText(kGraph, "g.txt");
  ProfileProblem profile;
  return MakeProblem(input, request, profile);
}

// Returns the error that the options cause.
std::string ProblemError(const PartitionRequest& request) {
  return ErrorOf<UsageError>([&] { Problem(request); });
}

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = TempPath(name);
  WriteFile(path, text);
  return path;
}

TEST(PartitionRequest, MakesTheProblemOfAGraph) {
  PartitionRequest request = Request();
  request.latency = 0.25, request.stages = 2, request.replicas = 2;
  PartitionProblem problem = Problem(request);
  ASSERT_EQ(problem.nodes.size(), 2u);  // the input costs nothing
  EXPECT_NEAR(problem.nodes[0].device_time, 0.003, 1e-12);
  EXPECT_EQ(problem.transfer_latency, 0.25);
  EXPECT_EQ(problem.stages, 2);
  EXPECT_EQ(problem.max_replicas, 2);
  ASSERT_EQ(problem.devices.size(), 2u);
  EXPECT_EQ(problem.devices[0].count, 3);
  EXPECT_TRUE(problem.devices[1].host);
  EXPECT_EQ(problem.devices[1].count, 0);
}

TEST(PartitionRequest, SortsDevicesIntoClasses) {
  PartitionRequest request = Request();
  request.speeds = {1, 2, 1};
  request.memories = {"2000", "1000", "2000"};
  PartitionProblem problem = Problem(request);
  ASSERT_EQ(problem.devices.size(), 3u);
  EXPECT_EQ(problem.devices[0].numbers, (Ints{0, 2}));
  EXPECT_EQ(problem.devices[0].count, 2);
  EXPECT_EQ(problem.devices[0].memory_bytes, 2000);
  EXPECT_EQ(problem.devices[1].numbers, Ints{1});
  EXPECT_EQ(problem.devices[1].speed, 2);
  EXPECT_EQ(problem.devices[1].memory_bytes, 1000);
  request.speeds = {1, 2};
  EXPECT_EQ(ProblemError(request), "--speeds: one number per device is expected: 3, not 2");
  request.speeds = {1, 0, 1};
  EXPECT_EQ(ProblemError(request), "--speeds: speeds and links above 0 are expected");
}

TEST(PartitionRequest, TakesTheSlowerDirectionOfEachPairOfLinks) {
  PartitionRequest request = Request();
  request.links = {0, 2, 3, 4, 0, 5, 1, 6, 0};
  PartitionProblem problem = Problem(request);
  ASSERT_EQ(problem.pair_links.size(), 3u);
  EXPECT_EQ(problem.pair_links[0][1], 2);
  EXPECT_EQ(problem.pair_links[1][0], 2);
  EXPECT_EQ(problem.pair_links[2][0], 1);
  EXPECT_EQ(problem.pair_links[1][2], 5);
  EXPECT_EQ(problem.devices[0].link, 2);  // its best
  request.links = {0, 2, 2, 2, 0, 2, 2, 2, 0};
  EXPECT_TRUE(Problem(request).pair_links.empty());  // all alike: links of devices
  EXPECT_EQ(Problem(request).devices[0].link, 2);
  request.links = {0, 2, 2, 0, 0, 2, 2, 2, 0};
  EXPECT_EQ(ProblemError(request), "--links: bandwidths above 0 are expected between devices");
  request.links = {2, 2, 2, 2};
  EXPECT_EQ(ProblemError(request), "--links: one number per device is expected: 3, not 4");
}

TEST(PartitionRequest, SelectsTheMicrobatchesInFlight) {
  PartitionRequest request = Request();
  request.microbatches = 4;
  EXPECT_EQ(Problem(request).in_flight, InFlight::k1F1B);
  request.in_flight = kOneInFlight;
  EXPECT_EQ(Problem(request).in_flight, InFlight::kOne);
  request.in_flight = "gpipe";
  EXPECT_EQ(Problem(request).in_flight, InFlight::kGPipe);
  EXPECT_EQ(Problem(request).microbatches, 4);
  request.microbatches = PartitionRequest().microbatches;
  EXPECT_EQ(ProblemError(request), "--microbatches: gpipe holds all microbatches: say how many");
}

TEST(PartitionRequest, KeepsNodesTogetherAndSharesWeights) {
  PartitionRequest request = Request();
  PartitionProblem plain = Problem(request);
  const std::string both = plain.nodes[0].name + "," + plain.nodes[1].name;
  request.together = {both};
  PartitionProblem problem = Problem(request);
  EXPECT_GE(problem.nodes[0].group, 0);
  EXPECT_EQ(problem.nodes[0].group, problem.nodes[1].group);
  request.together = {plain.nodes[0].name + ",node77"};
  EXPECT_EQ(ProblemError(request),
            "--together: there is no node \"node77\" (did you mean \"node1\"?)");
  request = Request();
  request.shared = {both};
  problem = Problem(request);
  ASSERT_EQ(problem.values.size(), plain.values.size() + 1);
  const PartitionValue& weight = problem.values.back();
  EXPECT_EQ(weight.producer, -1);
  EXPECT_EQ(weight.consumers, (Ints{0, 1}));
  EXPECT_EQ(weight.transfers, 2);
  EXPECT_NEAR(weight.time, 2 * 24 * plain.exchange_time, 1e-15);
  request = Request();
  request.bandwidths = {0};
  EXPECT_EQ(ProblemError(request), "-b: a bandwidth above 0 is expected");
}

TEST(PartitionRequest, BecomesTheOptionsOfPipeDream) {
  PartitionRequest request;
  EXPECT_EQ(ErrorOf<UsageError>([&] { UpstreamOptions(request); }),
            "-n: the number of machines is expected\n  -n 4, or -n 4 2 for two levels");
  request.stages = 2;
  EXPECT_EQ(UpstreamOptions(request).machines, Ints{2});
  request.devices = 3;
  EXPECT_EQ(UpstreamOptions(request).machines, Ints{3});
  request.machines = {4, 2};
  PipeDreamOptions options = UpstreamOptions(request);
  EXPECT_EQ(options.machines, (Ints{4, 2}));
  EXPECT_EQ(options.bandwidths, (std::vector<double>{1e9, 1e9}));
  EXPECT_EQ(options.memory_bytes, 16e9);
  EXPECT_FALSE(options.activation_compression_ratio);
  request.memory = "5000";
  request.activation_compression_ratio = 0.5;
  EXPECT_EQ(UpstreamOptions(request).memory_bytes, 5000);
  EXPECT_EQ(UpstreamOptions(request).activation_compression_ratio, 0.5);
  request.memory = "-1";
  EXPECT_EQ(ErrorOf<UsageError>([&] { UpstreamOptions(request); }),
            "--memory: a size of at least 0 is expected, not -1");
}

TEST(PartitionRequest, MeasuresPackagesWithoutAFittingProfile) {
  PartitionRequest request;
  request.file = TempPath("package");
  std::filesystem::create_directory(request.file);
  EXPECT_TRUE(NeedsMeasuring(request));
  const std::string profile = Write("package/profile.json", "{}");
  EXPECT_FALSE(NeedsMeasuring(request));
  request.microbatch = 4;
  EXPECT_TRUE(NeedsMeasuring(request));
  request.microbatch = 0;
  request.input = "x.safetensors";
  EXPECT_TRUE(NeedsMeasuring(request));
  request.file = profile;
  EXPECT_FALSE(NeedsMeasuring(request));
}

TEST(PartitionRequest, DetectsTheKindOfItsInput) {
  PartitionRequest request;
  request.file = Write("g.txt", kGraph);
  PartitionInput graph = ReadPartitionInput(request);
  EXPECT_EQ(graph.kind, PartitionInput::kGraphText);
  EXPECT_EQ(graph.graph.nodes.size(), 3u);
  EXPECT_TRUE(graph.has_graph());
  request.microbatch = 2;  // only packages are measured
  EXPECT_EQ(ErrorOf<UsageError>([&] { ReadPartitionInput(request); }),
            "--microbatch-size: is for measuring a package, and " + request.file +
                " is a file\n  leave it out, or name the package");
  request.microbatch = 0;
  request.file = Write("t.json", R"({"maxFPGAs": 1, "nodes": []})");
  PartitionInput instance = ReadPartitionInput(request);
  EXPECT_EQ(instance.kind, PartitionInput::kTarnawski);
  EXPECT_FALSE(instance.has_graph());
  request.file = Write("other", "");
  const std::string& other = request.file;
  auto error = [&](const std::string& text) {
    WriteFile(other, text);
    return ErrorOf([&] { ReadPartitionInput(request); });
  };
  EXPECT_EQ(error("{}"), other +
                             ":1:1: is neither graph text, nor a profile, nor an instance of "
                             "Tarnawski et al.");
  EXPECT_EQ(error("PK\3\4"), other +
                                 ": is a model, not a profile or a package\n"
                                 "  compile it first: pipewright compile " +
                                 other + " -o FOLDER");
  EXPECT_EQ(error(""), other +
                           ":1:1: not JSON: syntax error while parsing value - unexpected end of "
                           "input; expected '[', '{', or a literal");
  EXPECT_EQ(error("[1"), other +
                             ":1:3: not JSON: syntax error while parsing array - unexpected end "
                             "of input; expected ']'");
  request.file = TempPath("no_such_graph.txt");
  EXPECT_EQ(ErrorOf([&] { ReadPartitionInput(request); }),
            request.file + ": cannot be read: No such file or directory");
}

}  // namespace
}  // namespace pipewright
