// When the losses of two runs differ by more than rounding.
#include "tune/measure/mixed_rows.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pipewright {
namespace {

TEST(TuneMixedRows, RoundingIsNoDifference) {
  EXPECT_FALSE(LossesDiffer(2.5, 2.500001, false));
  EXPECT_TRUE(LossesDiffer(0.270074, 0.270077, false)) << "attention between samples, a zero head";
  EXPECT_TRUE(LossesDiffer(2.5, 2.51, false));
  EXPECT_FALSE(LossesDiffer(2.5, 2.515625, true)) << "neighbors among bfloat16 numbers";
  EXPECT_TRUE(LossesDiffer(2.5, 2.53, true));
  EXPECT_TRUE(LossesDiffer(2.5, 2.8, true));
  EXPECT_FALSE(LossesDiffer(1e-9, 2e-9, false)) << "both are nothing but rounding";
  EXPECT_TRUE(LossesDiffer(NAN, 1, false));
  EXPECT_FALSE(LossesDiffer(NAN, NAN, false));
  EXPECT_TRUE(LossesDiffer(INFINITY, 1, false));
  EXPECT_FALSE(LossesDiffer(INFINITY, INFINITY, false));
}

}  // namespace
}  // namespace pipewright
