// Interpolated profiles against lines and curves that are known.
#include "plan/tune/interpolate.h"

#include <gtest/gtest.h>

#include <functional>

namespace pipewright {
namespace {

Profile ProfileOf(int64_t size, const std::function<double(double)>& time) {
  Profile profile;
  profile.microbatch = size;
  ProfileNode node;
  node.forward.median = time(static_cast<double>(size));
  node.backward.median = 2 * node.forward.median;
  node.kept = 100.0 * static_cast<double>(size);
  node.parameters = 7;
  profile.nodes = {node};
  profile.values.push_back({"v", 0, {}, 10.0 * static_cast<double>(size)});
  return profile;
}

TEST(TuneInterpolate, LinesAreExact) {
  const auto line = [](double size) { return 3 + 2 * size; };
  const Profile four = ProfileOf(4, line), sixteen = ProfileOf(16, line);
  const Profile made = InterpolateProfile(four, sixteen, 8), right = ProfileOf(8, line);
  EXPECT_EQ(made.microbatch, 8);
  EXPECT_DOUBLE_EQ(made.nodes[0].forward.median, right.nodes[0].forward.median);
  EXPECT_DOUBLE_EQ(made.nodes[0].backward.median, right.nodes[0].backward.median);
  EXPECT_DOUBLE_EQ(made.nodes[0].kept, 800);
  EXPECT_DOUBLE_EQ(made.nodes[0].parameters, 7);
  EXPECT_DOUBLE_EQ(made.values[0].bytes, 80);
  EXPECT_EQ(InterpolateProfile(four, four, 4).nodes[0].kept, 400);
  const Profile eight = ProfileOf(8, line);
  EXPECT_NEAR(InterpolationErrors({&four, &eight, &sixteen}).at(0), 0, 1e-12);
}

// Between 2 and 6, the line through the squares is 8 * size - 12: 20 instead of 16 at 4.
TEST(TuneInterpolate, TellsItsError) {
  const auto square = [](double size) { return size * size; };
  const Profile two = ProfileOf(2, square), four = ProfileOf(4, square), six = ProfileOf(6, square);
  EXPECT_NEAR(InterpolationErrors({&two, &four, &six}).at(0), 20.0 / 16 - 1, 1e-12);
  EXPECT_TRUE(InterpolationErrors({&two, &six}).empty());
}

TEST(TuneInterpolate, MeasuresAFewSizes) {
  using Sizes = std::set<int64_t>;
  EXPECT_EQ(SizesToMeasure({4}, 4), (Sizes{4}));
  EXPECT_EQ(SizesToMeasure({1, 2, 4, 8, 16, 32}, 1), (Sizes{1, 4, 16, 32}));
  EXPECT_EQ(SizesToMeasure({1, 2, 3, 4, 8, 16}, 3), (Sizes{1, 3, 8, 16}));
}

}  // namespace
}  // namespace pipewright
