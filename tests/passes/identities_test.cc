#include "passes/split/identities.h"

#include <gtest/gtest.h>

#include "tests/passes/model_text.h"

namespace pipewright {
namespace {

// Module 0 makes %a and %b of it; module 1 uses both.
std::string Used(const std::string& made, const ValueMeta* meta = nullptr) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %float : int = prim::Constant[value=6]()
  %one : int = prim::Constant[value=1]()
  %last : int = prim::Constant[value=-1]()
  %never : float = prim::Constant[value=0.]()
  %often : float = prim::Constant[value=0.5]()
  %a : Tensor = aten::mul(%x, %w)
)IR" + made + R"IR(  pippy::_pipe_split()
  %c : Tensor = aten::mul(%a, %b)
  %l : Tensor[] = prim::ListConstruct(%b, %c)
  %d : Tensor = aten::stack(%l, %float)
  return (%d, %b)
)IR",
                           {Parameter("w")});
  if (meta) model.meta["a"] = *meta;
  ModuleAssignment assignment = AssignModules(model, {});
  UseOperands(model, assignment);
  model.graph->lint();
  return model.graph->toString(false);
}

bool UsesOperand(const std::string& made, const ValueMeta* meta = nullptr) {
  const std::string text = Used(made, meta);
  const bool taken = text.find("aten::mul(%a, %a)") != std::string::npos;
  EXPECT_EQ(taken, text.find("ListConstruct(%a, %c)") != std::string::npos) << text;
  EXPECT_NE(text.find("return (%d, %b)"), std::string::npos) << text;
  return taken;
}

TEST(Identities, DropoutThatDropsNothingIsItsOperand) {
  EXPECT_TRUE(UsesOperand("  %b : Tensor = aten::dropout(%a, %never, %training)\n"));
  EXPECT_TRUE(UsesOperand("  %b : Tensor = aten::feature_dropout(%a, %often, %no)\n"));
  EXPECT_FALSE(UsesOperand("  %b : Tensor = aten::dropout(%a, %often, %training)\n"));
  EXPECT_FALSE(UsesOperand("  %b : Tensor = aten::relu(%a)\n"));
}

TEST(Identities, OperandsOfOperandsAreTheSameTensorToo) {
  EXPECT_TRUE(
      UsesOperand("  %m : Tensor = aten::dropout(%a, %never, %training)\n"
                  "  %b : Tensor = aten::dropout(%m, %never, %training)\n"));
}

TEST(Identities, AValueOfTheDimensionsIsItsOperandWhereTheExportKnowsThem) {
  const std::string flatten = "  %b : Tensor = aten::flatten(%a, %one, %last)\n";
  const std::string at_least = "  %b : Tensor = aten::atleast_2d(%a)\n";
  ValueMeta rows;
  rows.shape = {"s0", "6"};
  EXPECT_FALSE(UsesOperand(flatten));
  EXPECT_FALSE(UsesOperand(at_least));
  EXPECT_TRUE(UsesOperand(flatten, &rows));
  EXPECT_TRUE(UsesOperand(at_least, &rows));
  EXPECT_FALSE(UsesOperand("  %b : Tensor = aten::atleast_3d(%a)\n", &rows));
  ValueMeta images = rows;
  images.shape = {"s0", "6", "6"};
  EXPECT_FALSE(UsesOperand(flatten, &images));
  ValueMeta scalar;
  EXPECT_FALSE(UsesOperand(flatten, &scalar));
  EXPECT_FALSE(UsesOperand(at_least, &scalar));
}

TEST(Identities, AValueOfTheDtypeIsItsOperandWhereTheExportKnowsIt) {
  const std::string to = "  %b : Tensor = aten::to(%a, %float, %no, %no, %none)\n";
  ValueMeta meta;
  EXPECT_FALSE(UsesOperand(to));
  EXPECT_TRUE(UsesOperand(to, &meta));
  EXPECT_FALSE(UsesOperand("  %b : Tensor = aten::to(%a, %float, %no, %yes, %none)\n", &meta));
  // A weight stays in one module.
  const std::string weight = Used("  %b : Tensor = aten::dropout(%w, %never, %training)\n");
  EXPECT_NE(weight.find("aten::mul(%a, %b)"), std::string::npos) << weight;
  meta.cast = true;  // compiled with --dtype
  EXPECT_FALSE(UsesOperand(to, &meta));
  meta = {};
  meta.dtype = at::kBFloat16;
  EXPECT_FALSE(UsesOperand(to, &meta));
}

TEST(Identities, AnOutputIsTheOperandOfAnotherModuleUnderTheOutputsName) {
  auto returned = [](const std::string& outputs) {
    Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %never : float = prim::Constant[value=0.]()
  %a : Tensor = aten::mul(%x, %w)
  pippy::_pipe_split()
  %b : Tensor = aten::dropout(%a, %never, %training)
  %c : Tensor = aten::mul(%b, %b)
  pippy::_pipe_split()
  %d : Tensor = aten::mul(%a, %c)
  return ()IR" + outputs + ")\n",
                             {Parameter("w")});
    ModuleAssignment assignment = AssignModules(model, {});
    UseOperands(model, assignment);
    model.graph->lint();
    return model.graph->toString(false);
  };
  const std::string text = returned("%d, %b");
  EXPECT_NE(text.find("%b : Tensor = aten::mul(%x, %w)"), std::string::npos) << text;
  EXPECT_NE(text.find("return (%d, %b)"), std::string::npos) << text;
  // Two outputs stay two values.
  EXPECT_NE(returned("%a, %b").find("return (%a, %b)"), std::string::npos);
}

}  // namespace
}  // namespace pipewright
