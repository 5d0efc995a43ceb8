// Reads models: exports, TorchScript, and weights from other files.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <filesystem>

#include "base/files/mapped_file.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "compiler/import/adapt_weights.h"
#include "compiler/import/export/buffer_writes.h"
#include "compiler/import/export/export_archive.h"
#include "compiler/import/export/export_graph.h"
#include "compiler/import/export/source_lines.h"
#include "compiler/import/traced_dtypes.h"
#include "compiler/import/weight_layouts.h"
#include "formats/torch/archive.h"
#include "formats/weights/safetensors.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/passes/run_graph.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

using Strings = std::vector<std::string>;

std::string Floats(const at::Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
}

// The model of tests/data/import/export.pt2, written again with at::'s functions.
std::vector<at::Tensor> ExportedModel(const at::Tensor& x, std::vector<at::Tensor>& w) {
  at::Tensor y = at::linear(x, w[0], w[1]);
  w[8].add_(1);
  y = at::batch_norm(y, w[4], w[5], w[6], w[7], true, 0.1, 1e-5, false);
  const at::Tensor mean = y.detach().mean();
  y = at::dropout(y, 0.5, true);
  y = y.sum().item<float>() > 0 ? y.sin() : y.cos();
  return {(at::linear(y, w[2], w[3]) * mean).view({x.size(0), 2, 1}),
          at::cat({y, y}, -1).chunk(2, -1)[0]};
}

TEST(ImportExport, ComputesWhatTheModelComputes) {
  const Model model = ImportExport(Archive(std::string(TEST_DIR) + "/data/import/export.pt2"));
  Strings names;
  for (const Weight& weight : model.weights) names.push_back(weight.names[0]);
  EXPECT_EQ(names, (Strings{"a.weight", "a.bias", "b.weight", "b.bias", "bn.weight", "bn.bias",
                            "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}));
  EXPECT_EQ(model.weights[6].kind, WeightKind::kBuffer);
  EXPECT_TRUE(model.weights[0].requires_grad);
  ASSERT_EQ(model.symbols.size(), 1u);
  EXPECT_EQ(model.symbols.begin()->second, (std::pair<int64_t, int64_t>{2, 9}));
  at::manual_seed(1);
  std::vector<at::Tensor> weights;
  for (const Weight& weight : model.weights)
    weights.push_back(weight.dtype == at::kLong ? at::zeros(weight.shape, at::kLong)
                                                : at::rand(weight.shape));
  for (int trial = 0; trial < 4; ++trial) {
    std::vector<at::Tensor> own, theirs;
    for (const at::Tensor& weight : weights)
      own.push_back(weight.clone()), theirs.push_back(weight.clone());
    const at::Tensor x = at::randn({5, 2});
    std::vector<c10::IValue> stack(own.begin(), own.end());
    stack.insert(stack.end(), {true, at::Device("cpu"), x});
    at::manual_seed(static_cast<uint64_t>(trial));
    const auto results = RunGraph(model.graph, stack);
    at::manual_seed(static_cast<uint64_t>(trial));
    const auto expected = ExportedModel(x, theirs);
    ASSERT_EQ(results.size(), 2u);
    for (size_t i : {0, 1})
      EXPECT_TRUE(at::equal(results[i].toTensor(), expected[i])) << trial << i;
    for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i], theirs[i])) << names[i];
  }
}

TEST(ExportGraph, NumbersOfTheSchema) {
  EXPECT_EQ(ExportDtype(7), at::kFloat);
  EXPECT_EQ(ExportDtype(5), at::kLong);
  EXPECT_EQ(ExportDtype(13), at::kBFloat16);
  EXPECT_EQ(ExportLayout(7), at::kStrided);
  EXPECT_EQ(ExportMemoryFormat(1), at::MemoryFormat::Contiguous);
  for (int64_t unknown : {-1, 0, 1000}) {
    EXPECT_THROW(ExportDtype(unknown), Error) << unknown;
    EXPECT_THROW(ExportLayout(unknown), Error) << unknown;
    EXPECT_THROW(ExportMemoryFormat(unknown), Error) << unknown;
  }
  const ExportJson node = ExportJson::parse(
      R"({"outputs": [{"as_tensor": {"name": "a"}}, {"as_tensors": [{"name": "b"}, {"name": "c"}]}],
    "inputs": [{"arg": {"as_int": 1}}, {"arg": {"as_graph": {"name": "g", "graph": {"nodes": []}}}}]})");
  EXPECT_EQ(ResultNames(node), (Strings{"a", "b", "c"}));
  EXPECT_TRUE(GraphArgument(node, 1).contains("nodes"));
  // Names are unique, and ones that are taken get a number.
  Model model =
      ParseModel("graph(%training : bool, %device : Device, %x : Tensor):\n  return (%x)\n");
  ExportConverter converter(model, "m.pt2");
  torch::jit::Value *a = model.graph->addInput(), *b = model.graph->addInput();
  EXPECT_EQ(converter.Name(a, "y"), "y");
  EXPECT_EQ(converter.Name(b, "y"), "y_1");
}

TEST(SourceLines, OfTraces) {
  const std::string trace =
      "  File \"/home/me/model.py\", line 31, in forward\n    y = self.fc(x)\n"
      "  File \"/usr/lib/torch/nn/linear.py\", line 134, in forward\n    return F.linear(input)\n"
      "  File \"nocode.py\", line 7, in f\n";
  const std::vector<SourceLine> lines = LinesOf(trace);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].file, "/home/me/model.py");
  EXPECT_EQ(lines[0].number, 31u);
  EXPECT_EQ(lines[0].code, "y = self.fc(x)");
  EXPECT_EQ(OwnLine(trace.substr(0, trace.find("  File \"nocode"))).number, 31u);
  EXPECT_EQ(OwnLine("  File \"torch/a.py\", line 2, in f\n    x\n").number, 2u);  // all are torch's
  EXPECT_EQ(OwnLine("").number, 0u);
  EXPECT_EQ(StackPaths("L__self__,,m.Model;L__self__fc,fc,torch.nn.Linear;L__self__blocks_0@1,"
                       "blocks.0,m.Block"),
            (Strings{"fc", "blocks.0@1"}));
  EXPECT_EQ(StackPaths("a,L['self'].conv,C"), Strings{"conv"});
}

TEST(SourceLines, VariablesThatALineAssigns) {
  EXPECT_EQ(AssignedIn("y = f(x, a=1)"), Strings{"y"});
  EXPECT_EQ(AssignedIn("a, (b), self.c = f(x)"), (Strings{"a", "b", ""}));
  EXPECT_EQ(AssignedIn("y: Tensor = x"), Strings{"y"});
  EXPECT_EQ(AssignedIn("x += y"), Strings{"x"});
  EXPECT_EQ(AssignedIn("x[0] = y"), Strings{""});
  EXPECT_EQ(AssignedIn("y, = f(x)"), Strings{"y"});
  for (const char* none :
       {"return x", "if x == y:", "f(a=1)", "x = 1; y = 2", "(y := x)", "# a = b"})
    EXPECT_EQ(AssignedIn(none), Strings{}) << none;
  auto node = [](const std::string& name, int line, const std::string& code) {
    return ExportJson{{"outputs", {{{"as_tensor", {{"name", name}}}}}},
                      {"metadata",
                       {{"stack_trace", "  File \"m.py\", line " + std::to_string(line) +
                                            ", in forward\n    " + code + "\n"}}}};
  };
  // Only the last node of a statement is the variable.
  const auto variables = VariablesOf(
      ExportJson::array({node("mul", 3, "y = a * b + c"), node("add", 3, "y = a * b + c"),
                         node("sin", 4, "return y.sin()")}));
  EXPECT_EQ(variables, (std::unordered_map<std::string, std::string>{{"add", "y"}}));
}

// self.count = self.count + x: the copy at the end moves behind the last use of the old content.
TEST(BufferWrites, AreTakenAndWrittenBackEarly) {
  Model model = ParseModel(R"IR(
graph(%count : Tensor, %training : bool, %device : Device, %x : Tensor):
  %one : int = prim::Constant[value=1]()
  %no : bool = prim::Constant[value=0]()
  %new : Tensor = aten::add(%count, %x, %one)
  %y : Tensor = aten::mul(%count, %x)
  %z : Tensor = aten::sin(%y)
  %copy : Tensor = aten::copy_(%count, %new, %no)
  return (%z)
)IR",
                           {Buffer("count")});
  auto run = [&](at::Tensor count) {
    const at::Tensor z =
        RunGraph(model.graph, {count, true, at::Device("cpu"), at::full({2}, 3.)})[0].toTensor();
    return std::pair(count, z);
  };
  const auto [count, z] = run(at::ones({2}));
  const std::vector<BufferWrite> writes = TakeAssignments(model);
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_EQ(writes[0].first, model.weight_input(0));
  EXPECT_EQ(writes[0].second->debugName(), "new");
  EXPECT_EQ(Find(model, "aten::copy_"), nullptr);
  EXPECT_TRUE(at::equal(run(at::ones({2})).first, at::ones({2})));
  WriteBack(model, writes);
  model.graph->lint();
  torch::jit::Node* copy = Find(model, "aten::copy_");
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(copy->isAfter(Find(model, "aten::mul")));
  EXPECT_TRUE(copy->isBefore(Find(model, "aten::sin")));
  const auto [again, result] = run(at::ones({2}));
  EXPECT_TRUE(at::equal(again, count) && at::equal(again, at::full({2}, 4.)));
  EXPECT_TRUE(at::equal(result, z));
}

// A weight that lies transposed is read in its own layout.
TEST(WeightLayouts, AreKept) {
  Weight weight = Parameter("w"), plain = Parameter("p"), gaps = Parameter("g");
  weight.shape = {2, 3}, weight.strides = {1, 2};
  plain.shape = {2, 3}, plain.strides = {3, 1};
  gaps.shape = {2, 3}, gaps.strides = {6, 1};
  for (Weight* one : {&weight, &plain, &gaps}) one->file_bytes = 48;
  plain.file_offset = 100, gaps.file_offset = 200;
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %p : Tensor, %g : Tensor, %training : bool, %device : Device, %x : Tensor):
  %y : Tensor = aten::mul(%w, %x)
  %z : Tensor = aten::mul(%p, %x)
  %u : Tensor = aten::mul(%g, %x)
  return (%w, %y, %z, %u)
)IR",
                           {weight, plain, gaps});
  KeepLayouts(model);
  model.graph->lint();
  EXPECT_FALSE(model.weights[0].own_layout || model.weights[1].own_layout);
  EXPECT_TRUE(model.weights[2].own_layout);  // cannot be restored, only marked
  const at::Tensor w = at::randn({2, 3}), x = at::randn({2, 3});
  const auto results = RunGraph(model.graph, {w, w, w, true, at::Device("cpu"), x});
  EXPECT_EQ(results[0].toTensor().strides().vec(), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(at::equal(results[0].toTensor(), w));
  for (int i : {1, 2, 3}) EXPECT_TRUE(at::equal(results[i].toTensor(), w * x));
}

Model TwoWeights() {
  Weight a = Parameter("net.a"), b = Parameter("net.b");
  a.shape = {2}, a.strides = {1}, a.absent = true;
  b.shape = {3}, b.strides = {1}, b.absent = true;
  return ParseModel(R"IR(
graph(%a : Tensor, %b : Tensor, %training : bool, %device : Device, %x : Tensor):
  %y : Tensor = aten::mul(%x, %a)
  %z : Tensor = aten::mul(%y, %b)
  return (%z)
)IR",
                    {a, b});
}

TEST(TakeWeights, ByNameWithAPrefixAndCast) {
  const std::string file = TempPath("take.safetensors");
  const std::string a = Floats(at::ones({2})), b = Floats(at::ones({3}, at::kHalf));
  WriteSafetensors(file, {{"a", "F32", {2}, a}, {"b", "F16", {3}, b}, {"c", "F16", {3}, b}});
  Model model = TwoWeights();
  EXPECT_EQ(TakeWeights(model, file), (Strings{"the names in " + file + " lack the prefix \"net.\"",
                                               file + " has c, which the model does not use",
                                               "1 weight cast to the model's dtype"}));
  EXPECT_FALSE(model.weights[0].absent || model.weights[1].absent);
  EXPECT_EQ(model.weights[1].stored, at::kHalf);
  std::string bytes(8, '\0');
  MappedFile(model.files.at(static_cast<size_t>(model.weights[0].file)))
      .Read(model.weights[0].file_offset, bytes.data(), 8);
  EXPECT_EQ(bytes, a);
  RefuseAbsentWeights(model);
  WriteSafetensors(file, {{"net.a", "F32", {2}, a}, {"other", "F32", {2}, a}});
  Model lacks = TwoWeights();
  EXPECT_EQ(ErrorOf([&] { TakeWeights(lacks, file); }),
            file + ": lacks 1 weight: net.b\n  it has, unexpected: other");
  WriteSafetensors(file, {{"net.a", "F32", {2}, a}, {"net.b", "F32", {2}, a}});
  Model shape = TwoWeights();
  EXPECT_EQ(ErrorOf([&] { TakeWeights(shape, file); }),
            file + ": \"net.b\": is [2], the model's \"net.b\" is [3]");
  EXPECT_EQ(
      ErrorOf([&] { RefuseAbsentWeights(TwoWeights()); }),
      "test.pt2: was exported without weights: net.a, net.b\n  pass them with --weights FILE");
}

TEST(CastWeights, AndInputsOnEntry) {
  Model model = TwoWeights();
  model.meta["x"] = {at::kFloat, false, {"2"}, ""};
  model.weights[1].dtype = at::kLong;
  CastWeights(model, "bfloat16");
  EXPECT_EQ(model.weights[0].dtype, at::kBFloat16);
  EXPECT_EQ(model.weights[0].stored, at::kFloat);
  EXPECT_EQ(model.weights[1].dtype, at::kLong);
  const at::Tensor x = at::randn({1}), a = at::ones({1}, at::kBFloat16);
  EXPECT_TRUE(at::equal(RunGraph(model.graph, {a, a, true, at::Device("cpu"), x})[0].toTensor(),
                        x.to(at::kBFloat16)));
  EXPECT_EQ(ErrorOf([&] { CastWeights(model, "int64"); }),
            "--dtype int64: is not a floating-point dtype\n  choose float64, float32, bfloat16 or "
            "float16");
}

// A cast to float32 stays if the model's line says so, and is refused if it may be y.dtype.
TEST(FollowDtype, TellsConstantsFromTheDtypesOfTensors) {
  auto follow = [](const std::string& line) {
    Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %six : int = prim::Constant[value=6]()
  %no : bool = prim::Constant[value=0]()
  %none : NoneType = prim::Constant()
  %y : Tensor = aten::to(%x, %six, %no, %no, %none)
  return (%y)
)IR");
    model.meta["x"] = {at::kHalf, false, {"2"}, ""};
    model.meta["y"] = {at::kFloat, false, {"2"}, ""};
    auto source = std::make_shared<torch::jit::Source>(line, "model.py", 31);
    Find(model, "aten::to")->setSourceRange(torch::jit::SourceRange(source, 0, line.size()));
    return ErrorOf([&] { FollowDtype(model, "bfloat16", {at::kFloat}); });
  };
  EXPECT_EQ(follow("y = x.float()"), "");
  EXPECT_EQ(follow("y = x.to(torch.float32)"), "");
  const std::string error = follow("y = x.to(z.dtype)");
  EXPECT_EQ(error.find("test.pt2: --dtype bfloat16: the model holds float32 or a limit of it "
                       "(torch.finfo) as a constant"),
            0u)
      << error;
  EXPECT_NE(error.find("\n    to, "), std::string::npos) << error;
  EXPECT_NE(error.find("model.py:31: y = x.to(z.dtype)\n"), std::string::npos) << error;
}

TEST(MergeViews, OnePartOfAnother) {
  Weight whole = Buffer("whole"), part = Parameter("part");
  const at::Tensor memory = at::arange(6, at::kFloat);
  whole.shape = {6}, whole.strides = {1}, whole.data = memory;
  part.shape = {2}, part.strides = {1}, part.storage_offset = 3, part.data = memory.slice(0, 3, 5);
  part.requires_grad = false;
  whole.file_bytes = part.file_bytes = 24;
  const char text[] = R"IR(
graph(%whole : Tensor, %part : Tensor, %training : bool, %device : Device, %x : Tensor):
  %y : Tensor = aten::mul(%x, %part)
  %s : Tensor = aten::sin(%whole)
  return (%y, %s)
)IR";
  Model model = ParseModel(text, {whole, part});
  EXPECT_EQ(MergeViews(model),
            (Strings{"\"part\" is a view of \"whole\" and has no memory of its own; "
                     "files of weights do not name it"}));
  ASSERT_EQ(model.weights.size(), 1u);
  const auto results = RunGraph(model.graph, {memory, true, at::Device("cpu"), at::full({2}, 2.)});
  EXPECT_TRUE(at::equal(results[0].toTensor(), at::tensor({6.f, 8.f})));
  part.requires_grad = true;
  model = ParseModel(text, {whole, part});
  EXPECT_EQ(
      ErrorOf([&] { MergeViews(model); }),
      "test.pt2: parameter \"part\" is a part of \"whole\", which is not trained\n  give it its "
      "own memory: p.data = p.data.clone()");
}

}  // namespace
}  // namespace pipewright
