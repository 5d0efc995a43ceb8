// Interpolated profiles against lines and curves that are known.
#include "plan/tune/interpolate.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/plan/tune/chain.h"

namespace pipewright {
namespace {

Profile CurveAt(int64_t size, const std::function<double(double)>& time) {
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
  const Profile four = CurveAt(4, line), sixteen = CurveAt(16, line);
  const Profile made = InterpolateProfile(four, sixteen, 8), right = CurveAt(8, line);
  EXPECT_EQ(made.microbatch, 8);
  EXPECT_DOUBLE_EQ(made.nodes[0].forward.median, right.nodes[0].forward.median);
  EXPECT_DOUBLE_EQ(made.nodes[0].backward.median, right.nodes[0].backward.median);
  EXPECT_DOUBLE_EQ(made.nodes[0].kept, 800);
  EXPECT_DOUBLE_EQ(made.nodes[0].parameters, 7);
  EXPECT_DOUBLE_EQ(made.values[0].bytes, 80);
  EXPECT_EQ(InterpolateProfile(four, four, 4).nodes[0].kept, 400);
  const Profile eight = CurveAt(8, line);
  EXPECT_NEAR(InterpolationErrors({&four, &eight, &sixteen}).at(0), 0, 1e-12);
}

// Between 2 and 6, the line through the squares is 8 * size - 12: 20 instead of 16 at 4.
TEST(TuneInterpolate, TellsItsError) {
  const auto square = [](double size) { return size * size; };
  const Profile two = CurveAt(2, square), four = CurveAt(4, square), six = CurveAt(6, square);
  EXPECT_NEAR(InterpolationErrors({&two, &four, &six}).at(0), 20.0 / 16 - 1, 1e-12);
  EXPECT_TRUE(InterpolationErrors({&two, &six}).empty());
}

// Ten samples in microbatches of 1, 2, 4 and 10: three of the third have 4, 3 and 3 samples.
TEST(TuneInterpolate, CountsSmallerMicrobatches) {
  TuneProblem problem;
  problem.samples = 10;
  for (int64_t size : {1, 2, 4, 10}) problem.profiles.push_back({1, ProfileOf({1e-3}, size)});
  problem.profiles.push_back({2, ProfileOf({1e-3}, 4)});
  for (TuneProfile& each : problem.profiles)
    each.loss_forward = 1e-2 * static_cast<double>(each.profile.microbatch);
  const std::vector<TuneProfile> before = problem.profiles;
  CountSmallerMicrobatches(problem);
  const auto forward = [](const TuneProfile& each) { return each.profile.nodes[0].forward.median; };
  for (size_t i : {0, 1, 3}) EXPECT_EQ(forward(problem.profiles[i]), forward(before[i]));
  EXPECT_DOUBLE_EQ(forward(problem.profiles[2]), 1e-4 + 1e-3 * 10 / 3);
  EXPECT_DOUBLE_EQ(problem.profiles[2].profile.nodes[0].backward.median,
                   2 * (1e-4 + 1e-3 * 10 / 3));
  EXPECT_DOUBLE_EQ(problem.profiles[2].loss_forward, 1e-2 * 10 / 3);
  EXPECT_EQ(problem.profiles[2].profile.nodes[0].kept, 4e6);
  EXPECT_DOUBLE_EQ(forward(problem.profiles[4]), forward(before[4]) * 10 / 12)
      << "no smaller one on two ranks";
}

TEST(TuneInterpolate, MeasuresAFewSizes) {
  using Sizes = std::set<int64_t>;
  EXPECT_EQ(SizesToMeasure({4}, 4), (Sizes{4}));
  EXPECT_EQ(SizesToMeasure({1, 2, 4, 8, 16, 32}, 1), (Sizes{1, 4, 16, 32}));
  EXPECT_EQ(SizesToMeasure({1, 2, 3, 4, 8, 16}, 3), (Sizes{1, 3, 8, 16}));
}

}  // namespace
}  // namespace pipewright
