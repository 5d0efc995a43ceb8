// Writes modules as code, and finds where two modules differ.
#include <gtest/gtest.h>

#include "compiler/emit/module_code.h"
#include "compiler/emit/named_constants.h"
#include "passes/pipeline.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"

namespace pipewright {
namespace {

TEST(ModuleCode, AConstantWithoutAFormAsTextIsToldWithItsUser) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %y : Tensor = aten::mul(%x, %x)
  return (%y)
)IR");
  torch::jit::Node* node = Find(model, "aten::mul");
  auto source = std::make_shared<torch::jit::Source>("x * self.table", "model.py", 31);
  node->setSourceRange(torch::jit::SourceRange(source, 0, 14));
  node->setScope(c10::make_intrusive<torch::jit::Scope>()->push(c10::Symbol::scope("fc")));
  {
    torch::jit::WithInsertPoint before(node);
    node->replaceInput(1, model.graph->insertConstant(at::ones({3})));
  }
  const std::vector<ModuleBody> bodies = RunPasses(model, {});
  EXPECT_EQ(ErrorOf([&] { ModuleCode(model, bodies.at(0), 0); }),
            "test.pt2: module 0, aten::mul, submodule \"fc\", model.py:31: holds a constant that "
            "cannot be written as text (a Tensor)\n  register it as a buffer of the model");
}

TEST(FirstDifference, FindsTheOperation) {
  auto differs = [](const std::string& a, const std::string& b) {
    Model one = ParseModel("graph(%x : Tensor):\n" + a), other = ParseModel("graph(%x : Tensor):\n" + b);
    const torch::jit::Node* node = FirstDifference(*one.graph, *other.graph);
    return node ? std::string(node->kind().toQualString()) : "";
  };
  const std::string relu = "  %a : Tensor = aten::relu(%x)\n";
  const std::string tanh = "  %b : Tensor = aten::tanh(%a)\n";
  EXPECT_EQ(differs(relu + tanh + "  return (%b)\n", relu + tanh + "  return (%b)\n"), "");
  EXPECT_EQ(differs(relu + tanh + "  return (%b)\n",
                    relu + "  %b : Tensor = aten::tanh(%x)\n  return (%b)\n"),
            "aten::tanh");
  EXPECT_EQ(differs(relu + tanh + "  return (%b)\n", relu + "  return (%a)\n"), "aten::tanh");
  EXPECT_EQ(differs(relu + "  return (%a)\n", relu + tanh + "  return (%b)\n"), "prim::Return");
}

}  // namespace
}  // namespace pipewright
