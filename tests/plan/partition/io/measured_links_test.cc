#include "plan/partition/io/measured_links.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

using Links = std::vector<ProfileLink>;

TEST(MeasuredLinks, TheSlowerDirectionOfTwoRanksIsTheirLink) {
  const MeasuredLinks found = FiguresOf(Links{{0, 1, 1e-6, 2.02e9, 0}, {1, 0, 3e-6, 2e9, 0}});
  EXPECT_EQ(found.bandwidth, 2e9);
  EXPECT_TRUE(found.pairs.empty());
}

Links OfThreeRanks(double slow, double spread) {
  Links links;
  for (int from = 0; from < 3; ++from)
    for (int to = 0; to < 3; ++to)
      if (from != to) links.push_back({from, to, 1e-6, from + to == 3 ? slow : 2e9, spread});
  return links;
}

TEST(MeasuredLinks, PairsWithinTheSpreadAreAlike) {
  EXPECT_TRUE(FiguresOf(OfThreeRanks(1.98e9, 0.03e9)).pairs.empty());
  EXPECT_EQ(FiguresOf(OfThreeRanks(1.98e9, 0.03e9)).bandwidth, 2e9);
}

TEST(MeasuredLinks, PairsBeyondTheSpreadDiffer) {
  const MeasuredLinks found = FiguresOf(OfThreeRanks(1e9, 0.03e9));
  ASSERT_EQ(found.pairs.size(), 3u);
  EXPECT_EQ(found.pairs[1][2], 1e9);
  EXPECT_EQ(found.pairs[2][1], 1e9);
  EXPECT_EQ(found.pairs[0][1], 2e9);
  EXPECT_EQ(found.bandwidth, 2e9);
}

// A profile without a spread keeps every difference.
TEST(MeasuredLinks, WithoutASpreadOnlyEqualPairsAreAlike) {
  EXPECT_FALSE(FiguresOf(OfThreeRanks(1.98e9, 0)).pairs.empty());
  EXPECT_TRUE(FiguresOf(OfThreeRanks(2e9, 0)).pairs.empty());
}

TEST(MeasuredLinks, MissingPairsLeaveOneFigure) {
  const MeasuredLinks found = FiguresOf(Links{{0, 1, 1e-6, 2e9, 0}, {0, 2, 1e-6, 1e9, 0}});
  EXPECT_TRUE(found.pairs.empty());
}

}  // namespace
}  // namespace pipewright
