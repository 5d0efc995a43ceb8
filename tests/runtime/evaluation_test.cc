// Adds losses up by hand, and compares the sums.
#include "runtime/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace pipewright {
namespace {

TEST(Evaluation, OfNothingIsUnknownAndZero) {
  Evaluation evaluation;
  EXPECT_FALSE(evaluation.known());
  EXPECT_EQ(evaluation.mean(), 0);
  evaluation.losses.resize(2);  // every target is ignored
  EXPECT_FALSE(evaluation.known());
  EXPECT_EQ(evaluation.losses[0].mean(), 0);
  EXPECT_EQ(evaluation.mean(), 0);
}

TEST(Evaluation, IsTheWeightedSumOfTheMeans) {
  Evaluation evaluation;
  evaluation.losses = {{.weight = 0.5, .loss = 12, .targets = 4},  // the mean is 3
                       {.weight = -2, .loss = 5, .targets = 2},    // 2.5
                       {.weight = 100, .loss = 0, .targets = 0}};  // counts as 0
  EXPECT_EQ(evaluation.losses[1].mean(), 2.5);
  EXPECT_EQ(evaluation.mean(), 0.5 * 3 - 2 * 2.5);
  EXPECT_TRUE(evaluation.known());
  evaluation.losses[0].targets = 0;  // only the first loss tells whether the sums are there
  EXPECT_FALSE(evaluation.known());
  EXPECT_EQ(evaluation.mean(), -2 * 2.5);
}

TEST(Evaluation, NanHasNoSign) {
  Evaluation evaluation;
  evaluation.losses = {{.loss = -std::numeric_limits<double>::quiet_NaN(), .targets = 1}};
  EXPECT_TRUE(std::isnan(evaluation.mean()));
  EXPECT_FALSE(std::signbit(evaluation.mean()));
}

TEST(TotalLoss, AddsTheLossesOfOneMicrobatch) {
  Job job;
  job.losses.resize(2);
  job.losses[0].weight = 3;
  job.losses[1].weight = 0.25;
  LossTerms terms = {{{.loss = 1, .count = 7}, {.loss = 2}}, {{.loss = 8}, {.loss = -4}}};
  EXPECT_EQ(TotalLoss(job, terms, 0), 3 * 1 + 0.25 * 8);
  EXPECT_EQ(TotalLoss(job, terms, 1), 3 * 2 + 0.25 * -4);
  EXPECT_EQ(TotalLoss(job, {}, 0), 0);  // a run without losses
  terms[1][1].loss = -std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(TotalLoss(job, terms, 1)));
  EXPECT_FALSE(std::signbit(TotalLoss(job, terms, 1)));
  EXPECT_EQ(TotalLoss(job, terms, 0), 5);
  terms[1][1].loss = std::numeric_limits<double>::infinity();
  EXPECT_EQ(TotalLoss(job, terms, 1), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace pipewright
