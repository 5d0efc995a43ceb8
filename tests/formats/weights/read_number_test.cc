#include "formats/weights/read_number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace pipewright {

namespace {

double Read(const char* dtype, std::vector<unsigned char> bytes) {
  double number = -12345;
  EXPECT_TRUE(ReadNumber(dtype, reinterpret_cast<const char*>(bytes.data()), number)) << dtype;
  return number;
}

}  // namespace

TEST(Number, HalfPrecision) {
  EXPECT_EQ(Read("F16", {0x00, 0x3C}), 1.0);
  EXPECT_EQ(Read("F16", {0x00, 0xC0}), -2.0);
  EXPECT_EQ(Read("F16", {0xFF, 0x7B}), 65504.0);               // the largest
  EXPECT_EQ(Read("F16", {0x01, 0x00}), std::ldexp(1.0, -24));  // the smallest subnormal
  EXPECT_EQ(Read("F16", {0x00, 0x7C}), INFINITY);
  EXPECT_TRUE(std::isnan(Read("F16", {0x01, 0x7C})));
  EXPECT_TRUE(std::signbit(Read("F16", {0x00, 0x80})));
}

TEST(Number, BrainFloatIsTheUpperHalfOfAFloat) {
  EXPECT_EQ(Read("BF16", {0x80, 0x3F}), 1.0);
  EXPECT_EQ(Read("BF16", {0x49, 0xC0}), -3.140625);
  EXPECT_TRUE(std::isnan(Read("BF16", {0xC0, 0x7F})));
}

TEST(Number, IntegersKeepTheirSign) {
  EXPECT_EQ(Read("I8", {0xFF}), -1);
  EXPECT_EQ(Read("U8", {0xFF}), 255);
  EXPECT_EQ(Read("I16", {0xFE, 0xFF}), -2);
  EXPECT_EQ(Read("U16", {0xFE, 0xFF}), 65534);
  EXPECT_EQ(Read("I32", {0, 0, 0, 0x80}), -2147483648.0);
  EXPECT_EQ(Read("U32", {0, 0, 0, 0x80}), 2147483648.0);
  EXPECT_EQ(Read("I64", {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}), -1);
  EXPECT_EQ(Read("U64", {0, 0, 0, 0, 0, 0, 0, 0x80}), 9223372036854775808.0);
}

TEST(Number, OtherTypesAreNotRead) {
  double number = 7;
  for (const char* dtype : {"BOOL", "C64", "F8_E4M3", "F4", "", "float32"})
    EXPECT_FALSE(ReadNumber(dtype, "\0\0\0\0\0\0\0\0", number)) << dtype;
  EXPECT_EQ(number, 7);
}

}  // namespace pipewright
