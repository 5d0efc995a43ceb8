#include "base/symbol.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipewright {

TEST(Symbol, EvaluatesAsPythonDoes) {
  const std::map<std::string, int64_t> symbols = {{"s0", 7}, {"s77", 3}};
  const std::pair<const char*, int64_t> cases[] = {
      {"12", 12},
      {"s0", 7},
      {"2*s0 + 1", 15},
      {"s0//2", 3},
      {"(s0 + 1)//2", 4},
      {"-s0//2", -4},
      {"s0**2*s77", 147},
      {"Mod(s0, 4)", 3},
      {"-s0 % 4", 1},
      {"Max(s0, 4, 9)", 9},
      {"FloorDiv(s0, 2)", 3},
      {"CeilDiv(s0, 2)", 4},
      {"s0 - s77 - 1", 3},
      {"2**3**2", 512},
      {"BitwiseFn_bitwise_and(s0, 3) + BitwiseFn_bitwise_or(s77, 4)", 10},
      {"Pow(s0, 2) + PowByNatural(2, s77)", 57},
      {"((s0 - 1)//s77) + 1", 3},
  };
  for (const auto& [text, value] : cases) EXPECT_EQ(EvaluateSize(text, symbols), value) << text;
}

TEST(Symbol, EvaluatesConditions) {
  const std::map<std::string, int64_t> symbols = {{"s0", 7}, {"s77", 3}};
  const std::pair<const char*, bool> cases[] = {
      {"(s0 % 2) == 0", false},
      {"(s0 % 2) != 0", true},
      {"(s0)*(s77) > 20", true},
      {"s0 // 2 == 3 and s77 >= 4", false},
      {"s0 <= 6 or not (s77 < 3)", true},
      {"not s0 == 7", false},
      {"(s0 > 2) and ((s77 == 3) or (s0 == 1))", true},
      {"notes == 1 or s0 == 7", true},
      {"max(s0, 9) > 8 and min(s0, s77) == 3", true},
  };
  for (const auto& [text, value] : cases)
    EXPECT_EQ(EvaluateCondition(text, {{"notes", 2}, {"s0", 7}, {"s77", 3}}), value) << text;
  EXPECT_THROW(EvaluateCondition("s0 == h", symbols), Error);
  EXPECT_TRUE(IsCondition("(h % (h // 4)) == 0"));
  EXPECT_FALSE(IsCondition("L['n'] > 3"));
  EXPECT_FALSE(IsCondition("not_h == 1 2"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "not ";
  EXPECT_FALSE(IsCondition(deep + "1"));
  EXPECT_THROW(EvaluateCondition("s0 == 7 7", symbols), Error);
  EXPECT_THROW(EvaluateCondition("isinstance(s0, int)", symbols), Error);
}

TEST(Symbol, Solves) {
  using Solved = std::optional<std::pair<std::string, int64_t>>;
  const std::map<std::string, int64_t> symbols = {{"s0", 7}};
  EXPECT_EQ(SolveSize("2*h + 1", 7, symbols), Solved({"h", 3}));
  EXPECT_EQ(SolveSize("8*h", 0, symbols), Solved({"h", 0}));
  EXPECT_EQ(SolveSize("s0 - h", 3, symbols), Solved({"h", 4}));
  EXPECT_EQ(SolveSize("s0*(h + 2)", 21, symbols), Solved({"h", 1}));
  for (const char* none : {"12", "s0", "h + w", "h**2", "Pow(h, 2)", "h//2", "Mod(h, 4)", "h - h",
                           "Min(h, 2048)", "Mod(h, 2000)", "2*h +", "8//(h - 1)", "CleanDiv(h, 2)"})
    EXPECT_EQ(SolveSize(none, 4, symbols), Solved()) << none;
  EXPECT_THROW(SolveSize("2*h", 7, symbols), Error);
  EXPECT_THROW(SolveSize("h + 5", 4, symbols), Error);
}

TEST(Symbol, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"", "s1", "s0 +", "s0//0", "9999999999*9999999999", "(s0", "f(s0)",
                           "s0 s0", "2**64", "1.5", "9223372036854775808"})
    EXPECT_THROW(EvaluateSize(text, {{"s0", 7}}), Error) << text;
  EXPECT_THROW(EvaluateSize(std::string(100000, '('), {}), Error);
  EXPECT_THROW(EvaluateSize(std::string(100000, '-'), {}), Error);
}

TEST(Symbol, SymbolsOfAnExpression) {
  EXPECT_EQ(SymbolsOf("12"), std::vector<std::string>{});
  EXPECT_EQ(SymbolsOf("2*s0 + Max(1, u_3)//s0"),
            (std::vector<std::string>{"s0", "u_3", "s0"}));
}

}  // namespace pipewright
