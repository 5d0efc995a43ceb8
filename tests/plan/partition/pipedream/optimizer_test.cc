#include "plan/partition/pipedream/optimizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/partition/pipedream/states.h"

namespace pipewright {

static const std::string kData = TEST_DIR "/data/pipedream";

static ModelGraph Load(const std::string& path) {
  return ReadGraphText(ReadFile(kData + "/" + path), path);
}

static PipeDreamOptions Options(const Json& machines, const Json& bandwidths, const Json& flags) {
  PipeDreamOptions options;
  options.machines = machines.get<std::vector<int>>();
  options.bandwidths = bandwidths.get<std::vector<double>>();
  for (size_t i = 0; i < flags.size(); ++i) {
    std::string flag = flags[i];
    if (flag == "--straight_pipeline")
      options.straight_pipeline = true;
    else if (flag == "--use_memory_constraint")
      options.use_memory_constraint = true;
    else if (flag == "--use_fewer_machines")
      options.use_fewer_machines = true;
    else if (flag == "-s")
      options.memory_bytes = std::stod(flags[++i].get<std::string>());
    else if (flag == "--activation_compression_ratio")
      options.activation_compression_ratio = std::stod(flags[++i].get<std::string>());
    else
      ADD_FAILURE() << flag;
  }
  return options;
}

TEST(PipeDream, AgreesWithEveryResultOfUpstream) {
  int checked = 0;
  for (const std::string& line : Split(ReadFile(kData + "/optimizer_reference.jsonl"), '\n')) {
    if (line.empty()) continue;
    Json row = Json::parse(line);
    std::string model = row["model"];
    std::string kind = model == "gnmt" ? "translation" : "image_classification";
    PipeDreamResult result =
        PipeDreamPartition(Load("profiler/" + kind + "/profiles/" + model + "/graph.txt"),
                           Options(row["num_machines"], row["bandwidths"], row["options"]));
    ++checked;
    EXPECT_EQ(result.states, row["states"].get<int>());
    // Upstream crashed: without replication nothing fits; otherwise fewer machines suffice.
    if (row["error"].is_string()) {
      EXPECT_EQ(result.feasible, row["options"][0] != "--straight_pipeline") << line;
      continue;
    }
    double expected = row["objective_seconds_per_minibatch"];
    EXPECT_NEAR(result.seconds_per_minibatch, expected, 1e-9 * expected) << line;
    double single = row["speedup_vs_single"], parallel = row["speedup_vs_dp"];
    EXPECT_NEAR(result.one_machine_s / expected, single, 1e-9 * single) << line;
    EXPECT_NEAR(result.data_parallel_s / expected, parallel, 1e-9 * parallel) << line;
  }
  EXPECT_EQ(checked, 476);
}

// Counts layers like the published stage files: nodes that upstream declares in __init__.
static int Layers(const ModelGraph& graph, const PipeDreamStage& stage) {
  int layers = 0;
  for (int node : stage.nodes) {
    bool layer = true;
    for (const char* prefix : {"Input", "Size", "View", "Add", "hidden", "__getitem__", "Concat"})
      layer = layer && !graph.nodes[node].description.starts_with(prefix);
    layers += layer;
  }
  return layers;
}

TEST(PipeDream, FindsThePublishedPartitions) {
  Json cases = ReadJson(kData + "/acceptance_cases.json");
  for (const Json& c : cases) {
    ModelGraph graph = Load(c["profile"]);
    PipeDreamResult result = PipeDreamPartition(
        graph, Options(c["num_machines"], c["bandwidths_bytes_per_s"], c["options"]));
    double expected = c["expected_objective_s"];
    EXPECT_NEAR(result.seconds_per_minibatch, expected, 1e-8 * expected) << c["id"];
    size_t nodes = 0;
    for (const PipeDreamStage& stage : result.stages) nodes += stage.nodes.size();
    EXPECT_EQ(nodes, graph.nodes.size());
    if (c["match"] == "objective-tie") continue;
    std::vector<int> layers, replicas;
    for (const PipeDreamStage& stage : result.stages) {
      layers.push_back(Layers(graph, stage));
      replicas.push_back(stage.replicas);
    }
    EXPECT_EQ(layers, c["published_layers_per_stage"].get<std::vector<int>>()) << c["id"];
    EXPECT_EQ(replicas, c["published_replication"].get<std::vector<int>>()) << c["id"];
  }
}

TEST(PipeDream, StatesOfTheSmallTestGraphs) {
  EXPECT_EQ(EnumeratePipeDreamStates(Load("graph/test_graphs/test.txt"), 100).nodes.size(), 6u);
  EXPECT_EQ(EnumeratePipeDreamStates(Load("graph/test_graphs/test2.txt"), 100).nodes.size(), 9u);
}

TEST(PipeDream, RefusesWhatItCannotDo) {
  ModelGraph graph = Load("graph/test_graphs/test2.txt");
  EXPECT_THROW(PipeDreamPartition(graph, Options({4, 2}, {1e9}, Json::array())), UsageError);
  EXPECT_THROW(PipeDreamPartition(graph, Options({0}, {1e9}, Json::array())), UsageError);
  EXPECT_THROW(PipeDreamPartition(graph, Options({2}, {1e9}, Json::array()), 5), Error);
}

}  // namespace pipewright
