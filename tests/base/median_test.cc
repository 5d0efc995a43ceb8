#include "base/median.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pipewright {

TEST(Median, OfFewValues) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({7}), 7);
  EXPECT_EQ(Median({4, 1}), 2.5);
  EXPECT_EQ(Median({9, -1, 2}), 2);
  EXPECT_EQ(Median({10, 1, 3, 2}), 2.5);
  EXPECT_EQ(Median({5, 5, 5, 1}), 5);
}

TEST(Median, EqualsThatOfTheSortedValues) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<double> values(1 + random() % 9);
    for (double& value : values) value = static_cast<int>(random() % 12) - 6;
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const size_t n = sorted.size();
    EXPECT_EQ(Median(values), (sorted[(n - 1) / 2] + sorted[n / 2]) / 2);
  }
}

}  // namespace pipewright
