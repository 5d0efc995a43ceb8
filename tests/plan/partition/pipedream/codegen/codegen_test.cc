#include "plan/partition/pipedream/codegen/codegen.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/read_file.h"
#include "formats/conf.h"
#include "plan/partition/pipedream/codegen/torch_text.h"
#include "tests/error_text.h"

namespace pipewright {

static const std::string kData = TEST_DIR "/data/pipedream/";

struct NodeText {
  int id;
  const char* description;
  int stage;
  int parameters = 0;
};

static ModelGraph Graph(const std::vector<NodeText>& nodes,
                        const std::vector<std::pair<int, int>>& edges) {
  std::string text;
  for (const NodeText& node : nodes)
    text += "node" + std::to_string(node.id) + " -- " + node.description +
            " -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=4.0, "
            "parameter_size=" +
            std::to_string(node.parameters) + ".000 -- stage_id=" + std::to_string(node.stage) +
            "\n";
  for (auto [from, to] : edges)
    text += "\tnode" + std::to_string(from) + " -- node" + std::to_string(to) + "\n";
  return ReadGraphText(text, "g.txt");
}

static CodegenOptions Options(const std::string& name = "Net", const std::string& arch = "net") {
  CodegenOptions options;
  options.name = name;
  options.arch = arch;
  return options;
}

static CodegenResult Generate(const ModelGraph& graph) {
  return GenerateCode(graph, Options(), "g.txt");
}

static bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Codegen, WritesThePublishedVgg16) {
  CodegenOptions options;
  options.name = "VGG16Partitioned";
  options.arch = "vgg16";
  options.replicas = {{0, 3}, {1, 1}};
  std::string path = kData + "graph/test_graphs/vgg16_partitioned.txt";
  CodegenResult code = GenerateCode(ReadGraphText(ReadFile(path), path), options, path);
  EXPECT_EQ(code.files.size(), 8u);
  EXPECT_EQ(code.files["__init__.py"],
            "from .vgg16 import VGG16Partitioned\nfrom .stage0 import Stage0\n"
            "from .stage1 import Stage1\nfrom .stage2 import Stage2\n\n\n"
            "def arch():\n    return \"vgg16\"\n\n\n"
            "def model(criterion):\n    return [\n"
            "        (Stage0(), [\"input0\"], [\"out0\"]),\n"
            "        (Stage1(), [\"out0\"], [\"out1\"]),\n"
            "        (Stage2(), [\"out1\"], [\"out2\"]),\n"
            "        (criterion, [\"out2\"], [\"loss\"])\n    ]\n\n\n"
            "def full_model():\n    return VGG16Partitioned()\n");
  EXPECT_TRUE(Contains(code.files["stage0.py"], "_initialize_weights"));
  EXPECT_TRUE(Contains(code.files["stage0.py"], "torch.nn.ReLU(inplace=True)"));
  Conf hybrid = ParseConf(code.files["hybrid_conf.json"], "hybrid_conf.json");
  EXPECT_EQ(hybrid.stage_to_ranks, (std::vector<std::vector<int>>{{0, 1, 2}, {3}, {4}}));
  EXPECT_EQ(hybrid.module_to_stage, (std::vector<int>{0, 1, 2, 2}));
  EXPECT_EQ(ParseConf(code.files["dp_conf.json"], "dp").module_to_stage,
            (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(ParseConf(code.files["mp_conf.json"], "mp").stage_to_ranks.size(), 3u);
}

TEST(Codegen, AnAddLeavesItsOperandsToOtherUsers) {
  // Both operands of the Add are used again after it.
  CodegenResult code =
      Generate(Graph({{1, "Input", 0},
                      {2, "Linear(4, 4)", 0},
                      {3, "Linear(4, 4)", 0},
                      {4, "Add(inplace)", 0},
                      {5, "Mul", 1},
                      {10, "Concat(1)", 1}},
                     {{1, 2}, {1, 3}, {2, 4}, {3, 4}, {2, 5}, {4, 5}, {3, 10}, {5, 10}}));
  EXPECT_TRUE(Contains(code.files["stage0.py"], "out3 = out1 + out2\n"));
  EXPECT_TRUE(Contains(code.files["stage0.py"], "return (out1, out2, out3)"));
  EXPECT_TRUE(Contains(code.files["stage1.py"], "out3 = out0 * out2\n"));
  EXPECT_TRUE(Contains(code.files["stage1.py"], "out4 = torch.cat([out1, out3], 1)\n"));
  EXPECT_TRUE(Contains(code.files["__init__.py"],
                       "(Stage1(), [\"out0\", \"out1\", \"out2\"], [\"out3\"])"));
}

TEST(Codegen, NamesAreInNumericOrder) {
  // node9 before node10, as outputs of stage 0 and inputs of stage 1.
  CodegenResult code =
      Generate(Graph({{1, "Input0", 0}, {9, "Tanh()", 0}, {10, "ReLU()", 0}, {11, "Add", 1}},
                     {{1, 9}, {1, 10}, {10, 11}, {9, 11}}));
  EXPECT_TRUE(Contains(code.files["stage0.py"], "self.layer1 = torch.nn.Tanh()"));
  EXPECT_TRUE(Contains(code.files["stage0.py"], "return (out1, out2)"));
  // The order of the arguments is that of the edges.
  EXPECT_TRUE(Contains(code.files["stage1.py"], "out2 = out1 + out0\n"));
}

TEST(Codegen, TuplesAreNotCloned) {
  for (const char* lstm :
       {"LSTM(3, 4)", "torch.nn.LSTM(3, 4)", "torch.nn.modules.rnn.LSTM(3, 4)"}) {
    CodegenResult code = Generate(
        Graph({{1, "Input", 0}, {2, lstm, 0}, {3, "__getitem__(1)", 0}, {4, "LSTM(4, 4)", 1}},
              {{1, 2}, {2, 3}, {1, 4}, {3, 4}}));
    EXPECT_TRUE(Contains(code.files["stage0.py"], "= torch.nn.LSTM(3, 4)\n"));
    EXPECT_TRUE(Contains(code.files["stage1.py"], "out1 = input1\n")) << lstm;
  }
}

// Invalid descriptions.
TEST(Codegen, LayersOfYourOwnAreThoseOfTheTemplate) {
  CodegenOptions options = Options();
  options.model_template = "from mylayers import Foo\n%(import_statements)s\n%(module_name)s\n"
                           "%(layer_declarations)s\n%(module_methods)s\n%(inputs)s\n"
                           "%(function_definition)s\n";
  CodegenResult code = GenerateCode(Graph({{1, "Input", 0}, {2, "Foo(3)", 0}}, {{1, 2}}), options,
                                    "g.txt");
  EXPECT_TRUE(Contains(code.files["stage0.py"], "self.layer1 = Foo(3)\n"));
}

TEST(Codegen, AttentionTakesQueryKeyAndValue) {
  const std::vector<NodeText> nodes = {
      {1, "Input", 0}, {2, "Linear(8, 8)", 0}, {3, "MultiheadAttention(8, 2)", 2},
      {4, "__getitem__(0)", 2}, {5, "ReLU()", 2}};
  CodegenResult code = Generate(Graph(nodes, {{1, 2}, {2, 3}, {3, 4}, {4, 5}}));
  EXPECT_TRUE(Contains(code.files["stage1.py"], "self.layer1(out0, out0, out0)\n"));
  ASSERT_EQ(code.notes.size(), 1u);  // there is no stage 1
  EXPECT_EQ(code.notes[0],
            "stages are renumbered 0 to 1: some of the graph's, up to 2, have no node");
  code = Generate(Graph(nodes, {{1, 2}, {1, 3}, {2, 3}, {3, 4}, {4, 5}}));
  EXPECT_TRUE(Contains(code.files["stage1.py"], "self.layer2(out0, out1, out1)\n"));
}

TEST(Codegen, NamesOfPythonAndOfWhatIsWrittenAreRefused) {
  ModelGraph graph = Graph({{1, "Input", 0}, {2, "ReLU()", 0}, {3, "ReLU()", 1}}, {{1, 2}, {2, 3}});
  auto refused = [&](const std::string& name, const std::string& arch,
                     const std::map<int, int>& replicas = {}) {
    CodegenOptions options = Options(name, arch);
    options.replicas = replicas;
    return ErrorOf<UsageError>([&] { GenerateCode(graph, options, "g.txt"); });
  };
  EXPECT_EQ(refused("Stage2", "stage2"), "");
  EXPECT_EQ(refused("class", "net"),
            "-n: \"class\" is not a valid Python name: it is a keyword\n  letters, digits "
            "and _ make a name: VGG16Partitioned, vgg16");
  EXPECT_EQ(refused("Net", "stage1"),
            "-a: \"stage1\" is the name of what stage 1 is written as\n  choose another name");
  for (const char* name :
       {"None", "__debug__", "Stage0", "model", "full_model", "torch", "", "a b", "1a"})
    EXPECT_NE(refused(name, "net"), "") << name;
  for (const char* arch : {"None", "__debug__", "stage0", "__init__", "import", "../x", "a.b"})
    EXPECT_NE(refused("Net", arch), "") << arch;
  EXPECT_NE(refused("Net", "net", {{0, 0}}), "");
  EXPECT_NE(refused("Net", "net", {{0, -1}}), "");
  EXPECT_NE(refused("Net", "net", {{2, 1}}), "");
  EXPECT_NE(refused("Net", "net", {{0, 1 << 20}, {1, 1}}), "");
}

TEST(Codegen, SharedLayersAreHeldByTheFirstStageThatUsesThem) {
  CodegenOptions options = Options();
  options.shared = {{"node2", "node4"}, {"node3", "node4"}};
  const std::vector<NodeText> nodes = {{1, "Input", 0},        {2, "Linear(4, 4)", 1},
                                       {3, "Linear(4, 4)", 0}, {4, "Linear(4, 4)", 1},
                                       {5, "Add", 1},          {6, "Linear(4, 5)", 1}};
  ModelGraph graph = Graph(nodes, {{1, 2}, {1, 3}, {2, 4}, {4, 5}, {3, 5}, {5, 6}});
  CodegenResult code = GenerateCode(graph, options, "g.txt");
  EXPECT_TRUE(Contains(code.files["net.py"], "self.stage1.layer2 = self.stage0.layer1\n"))
      << code.files["net.py"];
  EXPECT_TRUE(Contains(code.files["stage1.py"], "out3 = self.layer2(out2)"));
  for (const std::vector<std::string>& group :
       std::vector<std::vector<std::string>>{{"node2", "node6"}, {"node1", "node2"}, {"node9"}}) {
    options.shared = {group};
    EXPECT_THROW(GenerateCode(graph, options, "g.txt"), UsageError) << group[0];
  }
}

TEST(Codegen, ModulesUsedTwiceKeepOneSetOfWeights) {
  CodegenResult code = Generate(Graph({{1, "Input", 0},
                                       {2, "Linear(4, 4)", 0, 80},
                                       {3, "Linear(4, 4)", 0, 0},
                                       {4, "Linear(4, 4)", 1, 0}},
                                      {{1, 2}, {2, 3}, {3, 4}}));
  EXPECT_TRUE(Contains(code.files["stage0.py"], "out2 = self.layer1(out1)"));
  EXPECT_FALSE(Contains(code.files["stage0.py"], "self.layer2 ="));
  EXPECT_TRUE(Contains(code.files["net.py"], "self.stage1.layer1 = self.stage0.layer1"));
  EXPECT_TRUE(Contains(code.files["__init__.py"], "    stages[1].layer1 = stages[0].layer1\n"));
}

TEST(Codegen, ATenStageTranslationModel) {
  std::string path = kData + "profiler/translation/profiles/gnmt/graph.txt";
  ModelGraph graph = ReadGraphText(ReadFile(path), path);
  // The cuts of the published gpus=12 conf, by the last node of each stage.
  int last[] = {5, 8, 13, 19, 23, 28, 33, 40, 46, 48};
  for (GraphNode& node : graph.nodes) {
    int id = std::stoi(node.id.substr(4));
    node.stage = static_cast<int>(std::lower_bound(last, last + 10, id) - last);
  }
  CodegenResult code = Generate(graph);
  EXPECT_TRUE(code.notes.empty());
  const std::string& init = code.files["__init__.py"];
  const char* lists[] = {
      "(Stage0(), [\"input0\", \"input1\"], [\"out0\"])",
      "(Stage1(), [\"out0\"], [\"out1\"])",
      "(Stage2(), [\"out1\"], [\"out2\"])",
      "(Stage3(), [\"out1\", \"out2\"], [\"out3\"])",
      "(Stage4(), [\"input1\", \"input2\", \"out3\"], [\"out4\", \"out5\"])",
      "(Stage5(), [\"out4\"], [\"out6\"])",
      "(Stage6(), [\"out5\", \"out6\"], [\"out7\"])",
      "(Stage7(), [\"out5\", \"out7\"], [\"out8\"])",
      "(Stage8(), [\"out5\", \"out8\"], [\"out9\"])",
      "(Stage9(), [\"out8\", \"out9\"], [\"out10\"])",
      "(criterion, [\"out10\"], [\"loss\"])",
  };
  for (const char* list : lists) EXPECT_TRUE(Contains(init, list)) << list << "\n" << init;
  // Hidden states are None everywhere, and unused items are gone.
  EXPECT_TRUE(Contains(code.files["stage6.py"], ", None)"));
  for (const auto& [name, text] : code.files) {
    EXPECT_FALSE(Contains(text, "hidden")) << name;
    EXPECT_FALSE(Contains(text, "[1]\n")) << name;
  }
}

TEST(Codegen, StagesOfInputsAloneHandThemOn) {
  CodegenResult code =
      Generate(Graph({{1, "Input", 0}, {2, "ReLU()", 1}, {3, "Tanh()", 2}}, {{1, 2}, {2, 3}}));
  EXPECT_TRUE(Contains(code.files["__init__.py"], "(Stage0(), [\"input0\"], [\"out0\"])"));
  EXPECT_TRUE(Contains(code.files["__init__.py"], "(Stage1(), [\"out0\"], [\"out1\"])"));
}

TEST(Codegen, DeepSpeechsModulesAreItsOwn) {
  const char* conv =
      "MaskConv(  (seq_module): Sequential(    (0): Conv2d(1, 32, kernel_size=(41, 11), stride=(2, "
      "2), padding=(20, 5))    (1): BatchNorm2d(32, eps=1e-05, momentum=0.1)    (2): "
      "Hardtanh(min_val=0, max_val=20, inplace)  ))";
  const char* rnn =
      "BatchRNN(  (batch_norm): SequenceWise (BatchNorm1d(800, eps=1e-05))  (rnn): LSTM(800, 768, "
      "bidirectional=True))";
  const char* last =
      "SequenceWise (Sequential(  (0): BatchNorm1d(768, eps=1e-05)  (1): Linear(in_features=768, "
      "out_features=29, bias=False)))";
  CodegenResult code = Generate(Graph({{1, "Input0", 0},
                                       {2, "Input1", 0},
                                       {3, "self.get_seq_lens", 0},
                                       {4, conv, 0},
                                       {5, rnn, 1},
                                       {6, last, 1},
                                       {7, "InferenceBatchSoftmax()", 1}},
                                      {{2, 3}, {1, 4}, {3, 4}, {4, 5}, {3, 5}, {5, 6}, {6, 7}}));
  const std::string& first = code.files["stage0.py"];
  EXPECT_TRUE(Contains(first, "from model import MaskConv")) << first;
  EXPECT_TRUE(Contains(first,
                       "MaskConv(torch.nn.Sequential(torch.nn.Conv2d(1, 32, "
                       "kernel_size=(41, 11), stride=(2, 2), padding=(20, 5)), "
                       "torch.nn.BatchNorm2d(32, eps=1e-05, momentum=0.1), "
                       "torch.nn.Hardtanh(min_val=0, max_val=20, inplace=True)))"))
      << first;
  EXPECT_TRUE(Contains(first, "def get_seq_lens(self, input_length):")) << first;
  EXPECT_TRUE(Contains(first, "= self.get_seq_lens(out")) << first;
  const std::string& second = code.files["stage1.py"];
  EXPECT_TRUE(Contains(second,
                       "BatchRNN(800, 768, rnn_type=torch.nn.LSTM, batch_norm=True, "
                       "bidirectional=True)"))
      << second;
  EXPECT_TRUE(Contains(second,
                       "SequenceWise(torch.nn.Sequential(torch.nn.BatchNorm1d(768, "
                       "eps=1e-05), torch.nn.Linear(in_features=768, out_features=29, "
                       "bias=False)))"))
      << second;
  EXPECT_TRUE(Contains(second, "InferenceBatchSoftmax()")) << second;
  // Counting frames requires the convolutions.
  EXPECT_THROW(Generate(Graph({{1, "Input0", 0}, {2, "self.get_seq_lens", 0}}, {{1, 2}})), Error);
}

TEST(Codegen, SaysWhatWasAssumedAndRefusesWhatCannotBe) {
  std::string path = kData + "profiler/image_classification/profiles/densenet121/graph.txt";
  EXPECT_EQ(Generate(ReadGraphText(ReadFile(path), path)).notes.size(), 1u);
  auto graph = [](const char* description) {
    return Graph({{1, "Input", 0}, {2, description, 0}}, {{1, 2}});
  };
  EXPECT_THROW(Generate(graph("Add")), Error);
  EXPECT_THROW(Generate(Graph({{1, "Input", 0}, {2, "ReLU()", 0}}, {})), Error);
  EXPECT_THROW(Generate(graph("Thing(  (a): Linear(1, 2))")), Error);
  EXPECT_THROW(
      Generate(Graph({{1, "Input", 0}, {2, "ReLU()", 1}, {3, "ReLU()", 0}}, {{1, 2}, {2, 3}})),
      Error);
  CodegenOptions options;
  options.name = "a b";
  options.arch = "net";
  EXPECT_THROW(GenerateCode(graph("ReLU()"), options, "g"), UsageError);
  options.name = "Net";
  for (const char* text : {"import torch\n",  // each file would be the same
                           "%(module_name)s %(layer_declarations)s %(inputs)s "
                           "%(function_definition)s %(no_such)s"}) {
    options.model_template = text;
    EXPECT_THROW(GenerateCode(graph("ReLU()"), options, "g"), Error);
  }
}

}  // namespace pipewright
