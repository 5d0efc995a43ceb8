// Reads TorchScript.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/export.h>

#include "compiler/import/script/script_archive.h"
#include "compiler/import/script/script_model.h"
#include "compiler/import/script/script_source.h"
#include "formats/torch/archive.h"
#include "base/error.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/passes/run_graph.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

// y = dropout(relu(x w)) + bias * scale, with a loop and a branch.
torch::jit::Module Scripted() {
  torch::jit::Module module("__torch__.Net"), inner("__torch__.Inner");
  for (torch::jit::Module* one : {&module, &inner})
    one->register_attribute("training", c10::BoolType::get(), true);
  inner.register_parameter("bias", at::tensor({1.f, -2.f}), false);
  inner.define("def forward(self, x, scale: float):\n  return x + self.bias * scale\n");
  module.register_parameter("w", at::tensor({1.f, 2.f, 3.f, 4.f}).view({2, 2}), false);
  module.register_buffer("count", at::zeros({}));
  module.register_module("inner", inner);
  module.define(R"(
def forward(self, x, scale: float = 3.0):
  self.count.add_(1)
  y = torch.relu(torch.mm(x, self.w))
  for i in range(2):
    y = y * 2
  if bool(y.sum() > 0):
    y = torch.dropout(y, 0.5, self.training)
  else:
    y = -y
  return self.inner.forward(y, scale)
)");
  return module;
}

TEST(ImportScript, ComputesWhatTheModuleComputes) {
  torch::jit::Module module = Scripted();
  const std::string path = TempPath("net.pt");
  module.save(path);
  const Model model = ImportScript(Archive(path), {});
  std::vector<std::string> names;
  for (const Weight& weight : model.weights) names.push_back(weight.names[0]);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"count", "inner.bias", "w"}));
  EXPECT_EQ(model.submodules, std::vector<std::string>{"inner"});
  ASSERT_EQ(model.graph->inputs().size(), model.first_input() + 1);  // scale has a default value
  EXPECT_EQ(model.graph->inputs().back()->debugName(), "x");
  for (bool training : {false, true})
    for (float sign : {1.f, -1.f}) {
      training ? module.train() : module.eval();
      module.attr("count").toTensor().zero_();
      const at::Tensor x = at::rand({3, 2}) * sign, count = at::zeros({});
      std::vector<c10::IValue> stack;
      for (const Weight& weight : model.weights)
        stack.push_back(weight.names[0] == "count" ? count
                        : weight.names[0] == "w"   ? module.attr("w").toTensor()
                                                   : at::tensor({1.f, -2.f}));
      stack.insert(stack.end(), {training, at::Device("cpu"), x});
      at::manual_seed(2);
      const at::Tensor y = RunGraph(model.graph, stack)[0].toTensor();
      at::manual_seed(2);
      EXPECT_TRUE(at::equal(y, module.forward({x}).toTensor()));
      EXPECT_EQ(count.item<float>(), 1);
    }
}

TEST(ImportScript, InputsThatAreNotGivenTakeTheirDefaults) {
  torch::jit::Module module = Scripted();
  const std::string path = TempPath("inputs.pt");
  module.save(path);
  const Model both = ImportScript(Archive(path), {"x", "scale"});
  EXPECT_EQ(both.graph->inputs().size(), both.first_input() + 2);
  EXPECT_EQ(ErrorOf([&] { ImportScript(Archive(path), {"x", "scal"}); }),
            "--input-names scal: the model has no such input (did you mean \"scale\"?)\n  its "
            "inputs: x, scale");
  EXPECT_NE(ErrorOf([&] { ImportScript(Archive(path), {"scale"}); }), "");  // x has no default
}

TEST(ScriptArchive, WeightsLieInTheFile) {
  torch::jit::Module module = Scripted();
  const std::string path = TempPath("archive.pt");
  module.save(path);
  const Archive archive(path);
  const ScriptArchive script = OpenScript(archive);
  const at::Tensor w = script.module.attr("w").toTensor();
  EXPECT_TRUE(at::equal(w, module.attr("w").toTensor()));
  const uint64_t offset = StorageOffset(script, w, "w");
  EXPECT_EQ(script.file->bytes().substr(offset, 16),
            std::string_view(static_cast<const char*>(module.attr("w").toTensor().data_ptr()), 16));
  EXPECT_EQ(ErrorOf([&] { StorageOffset(script, at::ones({2}), "foreign"); }),
            path +
                ": weight \"foreign\": is longer than its record\n  the file is damaged: copy or "
                "save it again");
  EXPECT_EQ(
      ErrorOf([&] { StorageOffset(script, at::ones({2}).to_sparse(), "sparse"); }),
      path + ": weight \"sparse\": is not a dense tensor\n  store it dense, and not quantized");
  const Archive exported(std::string(TEST_DIR) + "/data/import/export.pt2");
  EXPECT_EQ(ErrorOf([&] { OpenScript(exported); }),
            exported.path() +
                ": was written by a PyTorch before 1.4\n  save the model again with "
                "torch.jit.save");
}

TEST(ScriptSource, LimitsNesting) {
  CheckNesting("def f(x):\n  return " + std::string(300, '(') + "x" + std::string(300, ')'), "f.py");
  EXPECT_EQ(ErrorOf([] { CheckNesting("def f(x):\n  return " + std::string(301, '('), "f.py"); }),
            "f.py:2: nests deeper than 300 levels\n  write the model with intermediate values");
  CheckNesting("x = \"" + std::string(1000, '(') + "\"\ny = '" + std::string(1000, '[') + "'\n",
            "f.py");
  std::string minus = "x = ", nots = "x = ", blocks;
  for (int i = 0; i < 400; ++i) {
    minus += "-";
    nots += "not ";
    blocks += std::string(2 * static_cast<size_t>(i), ' ') + "if x:\n";
  }
  for (const std::string& code : {minus, nots, blocks})
    EXPECT_THROW(CheckNesting(code, "f.py"), Error) << code.substr(0, 20);
}

TEST(ScriptSource, DamagedTablesOfLinesGiveNone) {
  const auto lines = MakeModelLines("no pickle at all");
  auto source = std::make_shared<torch::jit::Source>("x = y", "f.py", 1);
  EXPECT_FALSE(lines->findSourceRangeThatGenerated(torch::jit::SourceRange(source, 0, 5)));
  EXPECT_FALSE(
      MakeModelLines("")->findSourceRangeThatGenerated(torch::jit::SourceRange(source, 0, 5)));
}

}  // namespace
}  // namespace pipewright
