#include "plan/partition/pipedream/codegen/stage_program.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/error_text.h"

namespace pipewright {
namespace {

using Ints = std::vector<int>;
using Names = std::vector<std::string>;

struct Line {
  const char* description;
  int stage;
  double parameters = 0;
};

ModelGraph Graph(const std::vector<Line>& lines, const std::vector<std::pair<int, int>>& edges) {
  ModelGraph graph;
  for (const Line& line : lines) {
    GraphNode node;
    node.id = "node" + std::to_string(graph.nodes.size());
    node.description = line.description;
    node.stage = line.stage;
    node.parameter_bytes = line.parameters;
    graph.nodes.push_back(node);
  }
  graph.edges = edges;
  return graph;
}

const std::string kPath = "g.txt";

std::string Refused(const ModelGraph& graph, const std::vector<Names>& shared = {}) {
  return ErrorOf([&] { MakeStageProgram(graph, shared, kPath); });
}

// The first layer's output skips a stage.
TEST(StageProgram, NamesWhatEntersAndLeavesEachStage) {
  ModelGraph graph = Graph({{"Input0", -1}, {"Linear(2, 2)", 0}, {"ReLU()", 1}, {"Add", 2}},
                           {{0, 1}, {1, 2}, {1, 3}, {2, 3}});
  StageProgram program = MakeStageProgram(graph, {}, kPath);
  EXPECT_EQ(program.stages, 3);
  EXPECT_EQ(program.members, (std::vector<Ints>{{1}, {2}, {3}}));
  EXPECT_EQ(program.inputs, (std::vector<Ints>{{0}, {1}, {1, 2}}));
  EXPECT_EQ(program.outputs, (std::vector<Ints>{{1}, {2}, {3}}));
  EXPECT_EQ(program.takes, (std::vector<Names>{{"input0"}, {"out0"}, {"out0", "out1"}}));
  EXPECT_EQ(program.gives, (std::vector<Names>{{"out0"}, {"out1"}, {"out2"}}));
  EXPECT_EQ(program.model_inputs, Names{"input0"});
  EXPECT_EQ(program.model_outputs, Names{"out2"});
  EXPECT_TRUE(program.notes.empty());
}

TEST(StageProgram, NumbersStagesWithoutGaps) {
  ModelGraph graph =
      Graph({{"Input0", -1}, {"ReLU()", 1}, {"ReLU()", 4}}, {{0, 1}, {1, 2}});
  StageProgram program = MakeStageProgram(graph, {}, kPath);
  EXPECT_EQ(program.stages, 2);
  EXPECT_EQ(program.members, (std::vector<Ints>{{1}, {2}}));
  EXPECT_EQ(program.notes.size(), 1u);
}

// The tuple itself is not sent; items that nothing uses are left out.
TEST(StageProgram, TakesItemsInTheStageOfTheirTuple) {
  ModelGraph graph = Graph({{"Input0", -1},
                            {"LSTM(2, 2)", 0},
                            {"__getitem__(0)", 1},
                            {"__getitem__(1)", 1},
                            {"ReLU()", 1}},
                           {{0, 1}, {1, 2}, {1, 3}, {2, 4}});
  StageProgram program = MakeStageProgram(graph, {}, kPath);
  EXPECT_EQ(program.members, (std::vector<Ints>{{1, 2}, {4}}));
  EXPECT_EQ(program.outputs, (std::vector<Ints>{{2}, {4}}));
  EXPECT_TRUE(program.dropped[3]);
  EXPECT_FALSE(program.dropped[2]);
}

// A module counts its parameters at its first use only; --shared names other pairs.
TEST(StageProgram, SharesModules) {
  const std::vector<std::pair<int, int>> edges = {{0, 1}, {1, 2}, {2, 3}};
  ModelGraph one = Graph(
      {{"Input0", -1}, {"Linear(2, 2)", 0, 24}, {"ReLU()", 0}, {"Linear(2, 2)", 1, 0}}, edges);
  EXPECT_EQ(MakeStageProgram(one, {}, kPath).module_of, (Ints{0, 1, 2, 1}));
  ModelGraph two = Graph(
      {{"Input0", -1}, {"Linear(2, 2)", 0, 24}, {"ReLU()", 0}, {"Linear(2, 2)", 1, 24}}, edges);
  EXPECT_EQ(MakeStageProgram(two, {}, kPath).module_of, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(MakeStageProgram(two, {{"node1", "node3"}}, kPath).module_of, (Ints{0, 1, 2, 1}));
  EXPECT_THROW(MakeStageProgram(two, {{"node1", "node2"}}, kPath), UsageError);
  EXPECT_THROW(MakeStageProgram(two, {{"node1", "node9"}}, kPath), UsageError);
  EXPECT_THROW(MakeStageProgram(two, {{"node0"}}, kPath), UsageError);
}

TEST(StageProgram, RefusesStagesThatCannotBeWritten) {
  EXPECT_NE(Refused(Graph({{"Input0", -1}, {"ReLU()", 1}, {"ReLU()", 0}}, {{0, 1}, {1, 2}}))
                .find("is in stage 0 but uses node node1 of stage 1"),
            std::string::npos);
  EXPECT_NE(Refused(Graph({{"Input0", -1}, {"ReLU()", 0}, {"ReLU()", -1}}, {{0, 1}, {1, 2}}))
                .find("has no stage, others have"),
            std::string::npos);
}

TEST(StageProgram, IsOneStageIfTheGraphHasNone) {
  ModelGraph graph = Graph({{"Input0", -1}, {"ReLU()", -1}, {"ReLU()", -1}}, {{0, 1}, {1, 2}});
  StageProgram program = MakeStageProgram(graph, {}, kPath);
  EXPECT_EQ(program.stages, 1);
  EXPECT_EQ(program.members, (std::vector<Ints>{{1, 2}}));
}

}  // namespace
}  // namespace pipewright
