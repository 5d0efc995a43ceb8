// Tests what counts as rounding between two ways to run inference.
#include "tune/measure/outputs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "formats/weights/safetensors.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

template <typename T>
std::string Written(const char* name, const char* dtype, const std::vector<T>& values) {
  const std::string path = TempPath(name);
  WriteSafetensors(path,
                   {{"y",
                     dtype,
                     {static_cast<int64_t>(values.size())},
                     {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}}});
  return path;
}

template <typename T>
std::string Why(const char* dtype, const std::vector<T>& a, const std::vector<T>& b,
                bool narrow = false) {
  return WhyOutputsDiffer(Written("a", dtype, a), Written("b", dtype, b), narrow);
}

TEST(TuneOutputs, RoundingIsNoDifference) {
  const float infinity = std::numeric_limits<float>::infinity(),
              none = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Why<float>("F32", {1, -2, 1e-9F}, {1.0001F, -2, 2e-9F}), "");
  EXPECT_EQ(Why<float>("F32", {1, -infinity, none, 0}, {1, -infinity, none, -0.0F}), "");
  EXPECT_EQ(Why<int64_t>("I64", {1, 2, 3}, {1, 2, 4}), "") << "a class that nearly was another";
  EXPECT_EQ(Why<uint16_t>("BF16", {0x3f80, 0x4000}, {0x3f81, 0x4001}), "");
  EXPECT_EQ(Why<float>("F32", {1, -2}, {1.02F, -2}, true), "") << "computed in 16 bits";
}

TEST(TuneOutputs, OtherValuesAreADifference) {
  EXPECT_EQ(Why<float>("F32", {3, 4}, {3, 5}), "\"y\" differs by 20 %");
  EXPECT_EQ(Why<float>("F32", {3, 4}, {3, 4.01F}), "\"y\" differs by 0.2 %");
  std::vector<float> rows(20'000, 1), one_other = rows;
  one_other[7] = 2;
  EXPECT_EQ(Why<float>("F32", rows, one_other), "\"y\" differs by 0.707 %");
  EXPECT_NE(Why<float>("F32", {1, -2}, {1.5F, -2}, true), "");
  std::vector<int64_t> classes(10'000, 3), some_others = classes;
  for (size_t i = 0; i < 50; ++i) some_others[i] = 4;
  EXPECT_NE(Why<int64_t>("I64", classes, some_others), "");
  EXPECT_EQ(Why<int64_t>("I64", classes, some_others, true), "");
  EXPECT_NE(Why<float>("F32", {1, 2}, {1, std::numeric_limits<float>::quiet_NaN()}), "");
  EXPECT_NE(Why<float>("F32", {0, 0}, {0, 1}), "");
  EXPECT_NE(Why<int64_t>("I64", {1, 2, 3, 4}, {1, 2, 4, 3}), "");
  EXPECT_NE(Why<uint8_t>("BOOL", {1, 0, 1, 0}, {0, 1, 1, 0}), "");
  const float masked = -1e9F;
  EXPECT_NE(Why<float>("F32", {1, masked, 3, masked}, {1, masked, 4, masked}), "");
  EXPECT_EQ(Why<float>("F32", {1, masked, 3, masked}, {1, masked, 3.0001F, masked}), "");
  EXPECT_EQ(Why<float>("F32", {1, 1, 1e-9F}, {1, 1, 2e-9F}), "") << "1 is not a mask";
  EXPECT_NE(Why<float>("F32", {5, 5, 5}, {5, 5, 6}), "");
  EXPECT_EQ(Why<float>("F32", {5, 5, 5}, {5, 5, 5.0001F}), "");
  EXPECT_EQ(Why<float>("F32", {1, 2, 3}, {1, 2}), "\"y\" differs in shape [3] and [2]");
}

TEST(TuneOutputs, DifferenceOfAllNumbers) {
  const auto difference = [](const std::vector<float>& a, const std::vector<float>& b) {
    return DifferenceOf(Written("a", "F32", a), Written("b", "F32", b));
  };
  EXPECT_EQ(difference({3, 4}, {3, 4}), 0);
  EXPECT_EQ(difference({0, 0}, {0, 0}), 0);
  EXPECT_DOUBLE_EQ(difference({3, 5}, {3, 4}), 0.2);
  EXPECT_TRUE(std::isinf(difference({0, 1}, {0, 0})));
  EXPECT_TRUE(std::isnan(difference({3, std::numeric_limits<float>::quiet_NaN()}, {3, 4})));
}

}  // namespace
}  // namespace pipewright
