#include "passes/split/pass_through.h"

#include <gtest/gtest.h>

#include "passes/split/split.h"
#include "tests/passes/model_text.h"

namespace pipewright {
namespace {

// Module 0 makes %a; modules 1 and 2 are `middle` and `last`.
std::string PassedOn(const std::string& middle, const std::string& last) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %no : bool = prim::Constant[value=0]()
  %none : NoneType = prim::Constant()
  %a : Tensor = aten::mul(%x, %w)
  pippy::_pipe_split()
)IR" + middle + "  pippy::_pipe_split()\n" +
                               last,
                           {Parameter("w")});
  ModuleAssignment assignment = AssignModules(model, {});
  PassThrough(model, assignment);
  model.graph->lint();
  return model.graph->toString(false);
}

bool PassesOn(const std::string& middle) {
  const std::string text =
      PassedOn(middle, "  %d : Tensor = aten::add(%c, %a, %zero)\n  return (%d)\n");
  const bool taken = text.find("aten::add(%c, %a_on, %") != std::string::npos;
  EXPECT_EQ(taken, text.find("aten::alias(%a)") != std::string::npos) << text;
  return taken;
}

TEST(PassThrough, WhatAModuleUsesOnceIsTakenFromWhereItIsMade) {
  EXPECT_FALSE(PassesOn("  %c : Tensor = aten::relu(%a)\n"));
  EXPECT_FALSE(PassesOn("  %c : Tensor = aten::linear(%a, %w, %none)\n"));
  EXPECT_FALSE(PassesOn("  %n : int = aten::size(%a, %zero)\n  %c : Tensor = aten::mul(%a, %n)\n"));
  EXPECT_FALSE(PassesOn("  %b : Tensor = aten::detach(%a)\n  %c : Tensor = aten::mul(%a, %b)\n"));
  EXPECT_FALSE(
      PassesOn("  %l : Tensor[] = prim::ListConstruct(%a, %x)\n"
               "  %c : Tensor = aten::cat(%l, %zero)\n"));
  EXPECT_FALSE(
      PassesOn("  %b : Tensor = aten::contiguous(%a, %zero)\n"
               "  %c : Tensor = aten::relu(%b)\n"));
}

TEST(PassThrough, WhatAModuleUsesTwiceGoesOnFromThere) {
  EXPECT_TRUE(PassesOn("  %c : Tensor = aten::mul(%a, %a)\n"));
  EXPECT_TRUE(PassesOn("  %b : Tensor = aten::relu(%a)\n  %c : Tensor = aten::mul(%a, %b)\n"));
  EXPECT_TRUE(
      PassesOn("  %l : Tensor[] = prim::ListConstruct(%a, %a)\n"
               "  %c : Tensor = aten::cat(%l, %zero)\n"));
  // A composite operator that uses its operand twice, and one that may return its operand.
  EXPECT_TRUE(PassesOn("  %c : Tensor = aten::cosine_similarity(%a, %x, %zero)\n"));
  EXPECT_TRUE(
      PassesOn("  %b : Tensor = aten::contiguous(%a, %zero)\n"
               "  %c : Tensor = aten::mul(%b, %b)\n"));
  EXPECT_TRUE(
      PassesOn("  %c : Tensor = prim::If(%no)\n"
               "    block0():\n"
               "      %e : Tensor = aten::relu(%a)\n"
               "      -> (%e)\n"
               "    block1():\n"
               "      -> (%x)\n"));
}

TEST(PassThrough, ItIsTheModulesLastOperation) {
  EXPECT_LT(PassedOn("  %c : Tensor = aten::mul(%a, %a)\n",
                     "  %d : Tensor = aten::add(%c, %a, %zero)\n  return (%d)\n")
                .find("%c : Tensor"),
            PassedOn("  %c : Tensor = aten::mul(%a, %a)\n",
                     "  %d : Tensor = aten::add(%c, %a, %zero)\n  return (%d)\n")
                .find("%a_on : Tensor"));
}

TEST(PassThrough, AnOutputOfTheModelKeepsItsName) {
  const std::string text = PassedOn("  %c : Tensor = aten::mul(%a, %a)\n",
                                    "  %d : Tensor = aten::relu(%c)\n  return (%a, %d)\n");
  EXPECT_NE(text.find("%a_on : Tensor = aten::mul(%x, %w)"), std::string::npos) << text;
  EXPECT_NE(text.find("%a : Tensor = aten::alias(%a_on)"), std::string::npos) << text;
  EXPECT_NE(text.find("return (%a, %d)"), std::string::npos) << text;
}

}  // namespace
}  // namespace pipewright
