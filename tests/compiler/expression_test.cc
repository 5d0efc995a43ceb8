#include "compiler/import/export/expression.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

TEST(SizeExpression, ReadsWhatExportsWrite) {
  const std::pair<const char*, const char*> kCases[] = {
      {"Symbol('s95', positive=True, integer=True)", "s95"},
      {"Integer(3)", "3"},
      {"Integer(-1)", "-1"},
      {"Mul(Integer(2), Symbol('s0', positive=True, integer=True))", "2*s0"},
      {"Add(Symbol('s0', integer=True), Integer(1))", "s0 + 1"},
      {"Mul(Symbol('a'), Add(Symbol('b'), Integer(1)))", "a*(b + 1)"},
      {"FloorDiv(Add(Symbol('s0'), Integer(1)), Integer(2))", "FloorDiv(s0 + 1, 2)"},
      {"Pow(Symbol('s0'), Integer(2))", "Pow(s0, 2)"},
  };
  for (auto [from, to] : kCases) EXPECT_EQ(SizeExpression(from), to);
}

TEST(SizeExpression, LeavesOtherTextAlone) {
  for (const char* text : {"", "s0", "Symbol('s0'", "Mul(,", "Add(Integer(1)) trailing", "'"})
    EXPECT_EQ(SizeExpression(text), text);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "Add(";
  EXPECT_EQ(SizeExpression(deep), deep);
}

}  // namespace
}  // namespace pipewright
