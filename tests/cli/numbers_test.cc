// Tests which numbers the command line accepts.
#include "cli/numbers.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace pipewright {
namespace {

std::string Check(const CLI::Validator& validator, std::string text) { return validator(text); }

TEST(Numbers, AcceptsWholeNumbersWithinTheLimits) {
  for (const char* text : {"1", "64", "07"}) EXPECT_EQ(Check(InRange(1, 64), text), "") << text;
  EXPECT_EQ(Check(InRange(1, 64), "0"), "\"0\" is less than 1");
  EXPECT_EQ(Check(InRange(1, 64), "-5"), "\"-5\" is less than 1");
  EXPECT_EQ(Check(InRange(1, 64), "65"), "\"65\" is more than 64");
  for (const char* text : {"", "x", "1.5", "1e1", "+1", " 1", "1 ", "0x1", "-"})
    EXPECT_EQ(Check(InRange(1, 64), text), "\"" + std::string(text) + "\" is not a whole number");
  EXPECT_EQ(Check(AtLeast(-3), "-3"), "");
  EXPECT_EQ(Check(AtLeast(0), "1073741824"), "");
  EXPECT_EQ(Check(AtLeast(0), "1073741825"), "\"1073741825\" is more than 1073741824");
}

TEST(Numbers, TreatsNumbersTooLargeForTheTypeAsTooLarge) {
  const std::string huge = "99999999999999999999";
  EXPECT_EQ(Check(InRange(0, 5), huge), "\"" + huge + "\" is more than 5");
  EXPECT_EQ(Check(InRange(0, 5), "-" + huge), "\"-" + huge + "\" is less than 0");
}

TEST(Numbers, AcceptsDecimalNumbersWithinTheLimits) {
  for (const char* text : {"0.5", "1e3", "0.50", "inf"})
    EXPECT_EQ(Check(NumberAtLeast(0.5), text), "") << text;
  EXPECT_EQ(Check(NumberAtLeast(0.5), "0.49"), "\"0.49\" is less than 0.5");
  EXPECT_EQ(Check(NumberMoreThan(0), "1e-300"), "");
  EXPECT_EQ(Check(NumberMoreThan(0), "0"), "\"0\" is not more than 0");
  EXPECT_EQ(Check(NumberMoreThan(0), "-1"), "\"-1\" is less than 0");
  EXPECT_EQ(Check(NumberInRange(0, 1), "1.0001"), "\"1.0001\" is more than 1");
  EXPECT_EQ(Check(NumberInRange(0, 1), "1"), "");
  EXPECT_EQ(Check(NumberInRange(0, 1), "1."), "");
  for (const char* text : {"", "nan", "one", "1,5", "+1", " 1", "0x1"})
    EXPECT_EQ(Check(NumberInRange(0, 1), text), "\"" + std::string(text) + "\" is not a number");
}

TEST(Numbers, DescribesTheLimits) {
  EXPECT_EQ(AtLeast(1).get_description(), "at least 1");
  EXPECT_EQ(InRange(1, 64).get_description(), "1 to 64");
  EXPECT_EQ(NumberAtLeast(0.5).get_description(), "at least 0.5");
  EXPECT_EQ(NumberMoreThan(0).get_description(), "more than 0");
  EXPECT_EQ(NumberInRange(0, 0.25).get_description(), "0 to 0.25");
}

}  // namespace
}  // namespace pipewright
