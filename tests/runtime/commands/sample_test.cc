#include "runtime/commands/sample.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace pipewright {
namespace {

TEST(Sample, GreedyTakesTheFirstOfEquals) {
  EXPECT_EQ(NextToken({1, 3, 3, 2}, {}, {}, 0.9), 1);
  EXPECT_EQ(NextToken({-1, NAN, -3}, {}, {}, 0.9), 0);
  EXPECT_THROW(NextToken({NAN, -INFINITY}, {}, {}, 0), Error);
}

// Divides positive logits and multiplies negative ones, each once, however often the token occurs.
TEST(Sample, RepetitionPenalty) {
  SampleOptions options;
  options.repetition_penalty = 2;
  EXPECT_EQ(NextToken({4, 2.5, 1}, {0, 0, 0}, options, 0), 1);
  EXPECT_EQ(NextToken({-1, -1.5, -9}, {0}, options, 0), 1);
  EXPECT_EQ(NextToken({4, 1.9f, 1}, {0}, options, 0), 0);
}

// Compares how often each token occurs with softmax by hand.
TEST(Sample, Frequencies) {
  const std::vector<float> logits = {std::log(1.f), std::log(4.f), std::log(2.f), std::log(1.f)};
  auto counts = [&](const SampleOptions& options) {
    std::vector<double> of(4);
    const int draws = 20000;
    for (int i = 0; i < draws; ++i)
      of[static_cast<size_t>(
          NextToken(logits, {}, options, RandomOf(7, 3, static_cast<uint64_t>(i))))] += 1. / draws;
    return of;
  };
  auto expect = [&](const SampleOptions& options, const std::vector<double>& wanted) {
    std::vector<double> found = counts(options);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(found[i], wanted[i], 0.02) << i;
      if (wanted[i] == 0) {
        EXPECT_EQ(found[i], 0) << i;
      }
    }
  };
  SampleOptions options;
  options.temperature = 1;
  expect(options, {1 / 8., 4 / 8., 2 / 8., 1 / 8.});
  options.temperature = 0.5;  // squares
  expect(options, {1 / 22., 16 / 22., 4 / 22., 1 / 22.});
  options.temperature = 1;
  options.top_k = 2;
  expect(options, {0, 4 / 6., 2 / 6., 0});
  options.top_k = 3;  // a token of equal probability stays
  expect(options, {1 / 8., 4 / 8., 2 / 8., 1 / 8.});
  options.top_k = 0;
  options.top_p = 0.7;
  expect(options, {0, 4 / 6., 2 / 6., 0});
  options.top_p = 0.1;
  expect(options, {0, 1, 0, 0});
}

}  // namespace
}  // namespace pipewright
