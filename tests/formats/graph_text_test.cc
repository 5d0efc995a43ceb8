#include "formats/graph_text.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "tests/error_text.h"

namespace pipewright {

static const std::string kData = TEST_DIR "/data/pipedream";

static std::string GraphError(const std::string& text) {
  const std::string error = ErrorOf([&] { ReadGraphText(text, "g.txt"); });
  return error.substr(0, error.find('\n'));
}

static const std::string kNode =
    "a -- Linear(2, 2) -- forward_compute_time=1.0, backward_compute_time=2.0, "
    "activation_size=8.0, parameter_size=16.0";

static std::string Node(const std::string& id) { return id + kNode.substr(1); }

TEST(GraphText, ReadsEveryPublishedGraphAndItsOwnOutput) {
  int read = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(kData)) {
    if (file.path().extension() != ".txt") continue;
    std::string text = ReadFile(file.path().string());
    ModelGraph graph = ReadGraphText(text, file.path().string());
    EXPECT_TRUE(LooksLikeGraphText(text));
    std::string written = WriteGraphText(graph);
    ModelGraph again = ReadGraphText(written, "again");
    EXPECT_EQ(WriteGraphText(again), written) << file.path();
    EXPECT_EQ(again.nodes, graph.nodes);
    EXPECT_EQ(Arguments(again), Arguments(graph));
    ++read;
  }
  EXPECT_GE(read, 10);
}

TEST(GraphText, TheTranslationProfileKeepsListsAndArgumentOrder) {
  std::string path = kData + "/profiler/translation/profiles/gnmt/graph.txt";
  std::string text = ReadFile(path);
  ModelGraph graph = ReadGraphText(text, path);
  EXPECT_TRUE(graph.arguments_ordered);
  // The current tool wrote it, so nothing in it changes.
  EXPECT_EQ(WriteGraphText(graph), text);
  EXPECT_EQ(graph.nodes[5].is_list || graph.nodes[6].is_list || graph.nodes[7].is_list, true);
}

TEST(GraphText, ImageProfilesHaveLostArgumentOrder) {
  std::string path = kData + "/profiler/image_classification/profiles/densenet121/graph.txt";
  ModelGraph graph = ReadGraphText(ReadFile(path), path);
  EXPECT_FALSE(graph.arguments_ordered);
  for (const auto& arguments : Arguments(graph))
    for (size_t i = 1; i < arguments.size(); ++i)
      EXPECT_FALSE(NumericIdLess(graph.nodes[arguments[i]].id, graph.nodes[arguments[i - 1]].id));
}

TEST(GraphText, ReadsEveryVariant) {
  ModelGraph graph =
      ReadGraphText(Node("a") + " -- stage_id=3\r\n" +
                        "b -- A -- B, c=[1] -- forward_compute_time=1e-1, backward_compute_time=0, "
                        "activation_size=[1; 2.5;3], parameter_size=4\r\n" +
                        Node("lonely") + "\r\n\ta -- b\r\n\ta -- b\r\n",
                    "g.txt");
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[0].stage, 3);
  EXPECT_EQ(graph.nodes[1].description, "A -- B, c=[1]");
  EXPECT_EQ(graph.nodes[1].output_bytes, (std::vector<double>{1, 2.5, 3}));
  EXPECT_EQ(graph.edges.size(), 2u);
  std::string written = WriteGraphText(graph);
  EXPECT_NE(written.find("activation_size=[1.0; 2.5; 3.0], parameter_size=4.000"),
            std::string::npos);
  EXPECT_EQ(WriteGraphText(ReadGraphText(written, "g.txt")), written);
}

TEST(GraphText, MalformedLinesNameLineAndColumn) {
  EXPECT_EQ(GraphError(kNode), "");
  EXPECT_EQ(GraphError(""), "g.txt:1:1: the graph has no nodes");
  EXPECT_EQ(GraphError("hello"),
            "g.txt:1:1: a node (ID -- DESCRIPTION -- ...) or an edge (TAB FROM -- TO) is expected");
  EXPECT_EQ(GraphError("a -- Linear -- x=1"), "g.txt:1:16: forward_compute_time= is expected here");
  EXPECT_EQ(GraphError("a -- L -- forward_compute_time=1.x, backward_compute_time=2"),
            "g.txt:1:32: a number is expected for forward_compute_time, not \"1.x\"");
  EXPECT_EQ(GraphError("a -- L -- forward_compute_time=1, activation_size=2"),
            "g.txt:1:35: backward_compute_time= is expected here");
  EXPECT_EQ(GraphError("a -- L -- forward_compute_time=-1, backward_compute_time=2"),
            "g.txt:1:32: forward_compute_time is negative");
  EXPECT_EQ(GraphError("a -- L -- forward_compute_time=nan, backward_compute_time=2"),
            "g.txt:1:32: a number is expected for forward_compute_time, not \"nan\"");
  EXPECT_EQ(GraphError(kNode + " -- stage_id=x"),
            "g.txt:1:" + std::to_string(kNode.size() + 14) +
                ": a stage (0, 1, 2, ...) is expected, not \"x\"");
  EXPECT_EQ(GraphError(kNode + "\n" + kNode), "g.txt:2:1: node a is declared twice");
  EXPECT_EQ(GraphError(kNode + "\n\ta -- b"), "g.txt:2:7: node \"b\" is not declared above");
  EXPECT_EQ(GraphError(kNode + "\n\ta - b"), "g.txt:2:2: an edge is expected: FROM -- TO");
  EXPECT_EQ(GraphError(kNode + "\n\ta -- a"), "g.txt:2:2: an edge from a node to itself");
  EXPECT_EQ(GraphError(kNode + "\n" + Node("b") + "\n" + Node("c") +
                       "\n\ta -- b\n\tb -- c\n\tc -- a\n\ta -- c"),
            "g.txt:6:2: the edge c -- a closes a cycle");
}

TEST(GraphText, NumericOrderOfIds) {
  EXPECT_TRUE(NumericIdLess("node9", "node10"));
  EXPECT_FALSE(NumericIdLess("node10", "node9"));
  EXPECT_TRUE(NumericIdLess("2", "10"));
  EXPECT_TRUE(NumericIdLess("a", "b"));
  EXPECT_FALSE(NumericIdLess("a", "a"));
}

}  // namespace pipewright
