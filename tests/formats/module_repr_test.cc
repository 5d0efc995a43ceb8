#include "formats/module_repr.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {

namespace {

ModuleRepr Read(const std::string& text) {
  return ReadModuleRepr({text, "graph.txt", "node4", 3, 12});
}

std::string ReprError(const std::string& text) {
  return ErrorOf([&] { Read(text); });
}

}  // namespace

TEST(ModuleRepr, ArgumentsByPositionAndByName) {
  const ModuleRepr conv = Read("Conv2d(3, 8, kernel_size=(3, 3), bias=False)");
  EXPECT_EQ(conv.name, "Conv2d");
  ASSERT_EQ(conv.arguments.size(), 4u);
  EXPECT_EQ(conv.arguments[0].value, "3");
  EXPECT_EQ(conv.arguments[0].name, "");
  EXPECT_EQ(conv.arguments[2].name, "kernel_size");
  EXPECT_EQ(conv.arguments[2].value, "(3, 3)");
  EXPECT_EQ(conv.arguments[3].value, "False");
}

TEST(ModuleRepr, ABareWordIsAFlagOrAString) {
  const ModuleRepr relu = Read("ReLU(inplace)");
  ASSERT_EQ(relu.arguments.size(), 1u);
  EXPECT_EQ(relu.arguments[0].name, "inplace");
  EXPECT_EQ(relu.arguments[0].value, "True");
}

TEST(ModuleRepr, Children) {
  const ModuleRepr whole = Read("Sequential(  (0): Linear(2, 3)  (1): ReLU())");
  ASSERT_EQ(whole.children.size(), 2u);
  EXPECT_EQ(whole.children[0].name, "Linear");
  EXPECT_EQ(whole.children[0].arguments.at(1).value, "3");
  EXPECT_EQ(whole.children[1].name, "ReLU");
}

TEST(ModuleRepr, NothingButLiterals) {
  for (const char* text :
       {"Linear(__import__('os').system('ls'), 3)", "Linear(2, 3); x = 1", "Linear(a.b)",
        "Linear(2, (lambda: 3))", "Linear(2,", "Linear(2, 3", "(2, 3)"}) {
    const std::string error = ReprError(text);
    EXPECT_TRUE(error.starts_with("graph.txt:3:")) << text << ": " << error;
  }
}

TEST(ModuleRepr, NamesAndKeywords) {
  EXPECT_EQ(ReprName("Conv2d(3, 8)"), "Conv2d");
  EXPECT_EQ(ReprName("Input0"), "Input0");
  EXPECT_TRUE(IsPythonKeyword("lambda"));
  EXPECT_TRUE(IsPythonKeyword("__debug__"));
  EXPECT_FALSE(IsPythonKeyword("lambda_"));
}

TEST(ModuleRepr, AnErrorNamesTheCharacter) {
  const Description description = {"Linear(2)", "graph.txt", "node4", 3, 12};
  EXPECT_EQ(description.At(7), "graph.txt:3:19: node node4");
}

}  // namespace pipewright
