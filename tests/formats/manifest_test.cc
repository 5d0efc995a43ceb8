#include "formats/manifest.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "tests/error_text.h"

namespace pipewright {

// Three modules; the first and the last share a weight; `x` skips the middle one.
static Manifest Example() {
  Manifest m;
  m.version = "0.1.0";
  m.source = "model.pt2";
  m.symbols["s0"] = {2, 4096};
  m.values = {{"idx", ValueKind::kTensor, "int64", {"s0", "8"}, false, -1, {0}, {}},
              {"x", ValueKind::kTensor, "float32", {"s0", "8", "16"}, true, 0, {1, 2}, {}},
              {"n", ValueKind::kInt, "", {}, false, 0, {2}, {}},
              {"y", ValueKind::kTensor, "float32", {"s0", "8", "16"}, true, 1, {2}, {}},
              {"out", ValueKind::kTensor, "float32", {"s0", "8", "4"}, true, 2, {}, {}}};
  m.inputs = {0};
  m.outputs = {4};
  m.modules = {{"module0",
                "modules/module0.py",
                "weights/module0.safetensors",
                "aa",
                {"wte"},
                {0},
                {1, 2},
                {{"wte.weight", WeightKind::kParameter, "float32", {4, 16}, true, true}},
                false,
                {{1, {{0}, {"wte.weight"}}}}},
               {"module1",
                "modules/module1.py",
                "weights/module1.safetensors",
                "bb",
                {},
                {1},
                {3},
                {{"pos", WeightKind::kBuffer, "int64", {8}, false, false}}},
               {"module2",
                "modules/module2.py",
                "weights/module2.safetensors",
                "cc",
                {"head"},
                {1, 2, 3},
                {4},
                {{"head.weight", WeightKind::kParameter, "float32", {4, 16}, true, true}}}};
  m.shared = {{{{0, "wte.weight"}, {2, "head.weight"}}}};
  m.tied = {{"head.weight", "wte.weight"}};
  return m;
}

static std::string Package(const std::string& manifest) {
  std::string folder = testing::TempDir() + "/manifest_test.pkg";
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/manifest.json", manifest);
  return folder;
}

TEST(Manifest, ParametersOfOneNameAreShared) {
  Manifest m = Example();
  m.modules[1].held.push_back(
      {"wte.weight", WeightKind::kParameter, "float32", {4, 16}, true, true});
  const std::string error = ErrorOf([&] { ReadManifest(Package(WriteManifest(m))); });
  EXPECT_NE(
      error.find("modules[1].held: the parameter \"wte.weight\" is also held by module 0, and "
                 "\"shared\" does not list them as one weight: give it another name"),
      std::string::npos)
      << error;
  m.shared = {{{{0, "wte.weight"}, {1, "wte.weight"}, {2, "head.weight"}}}};
  EXPECT_EQ(ErrorOf([&] { ReadManifest(Package(WriteManifest(m))); }), "");
}

TEST(Manifest, RoundTrip) {
  std::string text = WriteManifest(Example());
  EXPECT_EQ(WriteManifest(ReadManifest(Package(text))), text);
}

TEST(Manifest, StageGraphHasSkipsSharedWeightsAndNoEdgeWithinAStage) {
  StageGraph graph = MakeStageGraph(Example(), {{0, 1, 2}, false, {{0}, {1}, {2}}, {}});
  std::vector<StageEdge> edges = {{0, 1, true, 0, 0}, {0, 2, true, 0, 0}, {1, 2, true, 0, 0}};
  EXPECT_EQ(graph.edges, edges);
  EXPECT_EQ(graph.shared, (std::vector<std::vector<int>>{{0, 2}}));
  EXPECT_EQ(graph.ranks, 3);
  graph = MakeStageGraph(Example(), {{0, 0, 1}, false, {{0}, {1}}, {}});
  EXPECT_EQ(graph.edges, (std::vector<StageEdge>{{0, 1, true, 0, 0}}));
}

TEST(Manifest, DamageIsNamed) {
  struct Case {
    std::string from, to, expected;
  };
  const Case cases[] = {
      {"pipewright package", "a package", "format: this is not a package"},
      {"\"format_version\": 1", "\"format_version\": 7", "format version 7 is not 1"},
      {"\"to\": [1, 2]", "\"to\": [0, 2]", "values: x: \"to\" names module 0"},
      {"\"to\": [1, 2]", "\"to\": [1]", "values: x: \"to\" lacks module 2"},
      {"\"name\": \"y\"", "\"name\": \"x\"", "values[3]: the name \"x\" appears twice"},
      {"\"kind\": \"buffer\"", "\"kind\": \"bufer\"",
       "\"bufer\" is not parameter, buffer or constant"},
      {"{\"module\": 2", "{\"module\": 1", "module 1 holds no \"head.weight\""},
      {"modules/module1.py", "../module1.py", "does not lie in the package"},
      {"\"requires_grad\": true", "\"requires_grad\": false",
       "\"requires_grad\" of \"head.weight\" in module 2 is not that of the module before"},
      {"\"covers\"", "\"cover\"", "unknown key \"cover\" (did you mean \"covers\"?)"},
  };
  for (const Case& c : cases) {
    std::string text = WriteManifest(Example());
    size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from << "\n" << text;
    text.replace(at, c.from.size(), c.to);
    try {
      ReadManifest(Package(text));
      ADD_FAILURE() << "accepted: " << c.to;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(c.expected), std::string::npos) << e.what();
    }
  }
}

}  // namespace pipewright
