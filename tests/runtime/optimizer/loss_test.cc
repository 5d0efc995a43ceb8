#include "runtime/optimizer/loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {
namespace {

LossJob Of(LossJob::Kind kind) {
  LossJob job;
  job.kind = kind;
  return job;
}

void ExpectClose(const at::Tensor& loss, const at::Tensor& expected) {
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_TRUE(at::allclose(loss.to(at::kDouble), expected.to(at::kDouble), 1e-5, 1e-7))
      << loss.item<double>() << " instead of " << expected.item<double>();
}

// The definition: the mean of -log p over the targets that are not ignored; with label smoothing e,
// a part e of each target is spread evenly over all classes.
at::Tensor MeanOfClasses(const at::Tensor& log_p, const at::Tensor& target, int64_t ignored,
                         double smoothing) {
  at::Tensor sum = at::zeros({}, log_p.options());
  int64_t count = 0;
  for (int64_t i = 0; i < target.numel(); ++i) {
    const int64_t label = target[i].item<int64_t>();
    if (label == ignored) continue;
    sum = sum - log_p[i][label] * (1 - smoothing) - log_p[i].mean() * smoothing;
    ++count;
  }
  return sum / count;
}

TEST(Loss, ClassesAreAveragedOverTheTargetsThatCount) {
  at::manual_seed(1);
  const at::Tensor logits = at::randn({5, 4}), log_p = logits.log_softmax(1);
  const at::Tensor target = at::tensor({3, -100, 0, 2, -100}, at::kLong);
  LossJob job = Of(LossJob::kCrossEntropy);
  ExpectClose(Loss(job, logits, target, "y"), MeanOfClasses(log_p, target, -100, 0));
  job.label_smoothing = 0.3;
  ExpectClose(Loss(job, logits, target, "y"), MeanOfClasses(log_p, target, -100, 0.3));
  EXPECT_EQ(LossCount(job, target, 77), 3);
  job = Of(LossJob::kNll);
  ExpectClose(Loss(job, log_p, target, "y"), MeanOfClasses(log_p, target, -100, 0));
  // Another ignored label, which is also a class.
  job.ignore_index = 2;
  const at::Tensor all = at::tensor({3, 1, 0, 2, 2}, at::kLong);
  ExpectClose(Loss(job, log_p, all, "y"), MeanOfClasses(log_p, all, 2, 0));
  EXPECT_EQ(LossCount(job, all, 77), 3);
  // Logits of 16 bits are converted first.
  const at::Tensor half = logits.to(at::kHalf);
  job = Of(LossJob::kCrossEntropy);
  EXPECT_EQ(Loss(job, half, target, "y").scalar_type(), at::kFloat);
  ExpectClose(Loss(job, half, target, "y"),
              MeanOfClasses(half.to(at::kFloat).log_softmax(1), target, -100, 0));
}

TEST(Loss, WithoutTargetsIsZeroAndHasAGradientOfZeros) {
  at::Tensor logits = at::randn({2, 3}).requires_grad_(true);
  const at::Tensor none = at::full({2}, -100, at::kLong);
  const at::Tensor loss = Loss(LossJob(), logits, none, "y");
  EXPECT_EQ(loss.item<float>(), 0);
  loss.backward();
  EXPECT_TRUE(at::equal(logits.grad(), at::zeros({2, 3})));
}

TEST(Loss, FindsTheDimensionOfTheClasses) {
  at::manual_seed(2);
  const at::Tensor output = at::randn({2, 3, 5, 7});  // 3 classes, or 7
  const at::Tensor second = at::randint(0, 3, {2, 5, 7}), last = at::randint(0, 7, {2, 3, 5});
  ExpectClose(Loss(LossJob(), output, second, "y"),
              MeanOfClasses(output.permute({0, 2, 3, 1}).reshape({-1, 3}).log_softmax(1),
                            second.reshape({-1}), -100, 0));
  ExpectClose(Loss(LossJob(), output, last, "y"),
              MeanOfClasses(output.reshape({-1, 7}).log_softmax(1), last.reshape({-1}), -100, 0));
  // One target in a row for each position.
  ExpectClose(Loss(LossJob(), output, last.reshape({-1}), "y"), Loss(LossJob(), output, last, "y"));
  // Both dimensions fit: the job must say which.
  const at::Tensor square = at::randn({2, 3, 3}), target = at::randint(0, 3, {2, 3});
  EXPECT_EQ(
      ErrorOf([&] { Loss(LossJob(), square, target, "y"); }),
      "y: the classes may be dimension 1 of the output or 2: output float32 [2, 3, 3], target "
      "int64 [2, 3]\n  say which: \"loss\": {\"type\": \"cross_entropy\", \"class_dim\": 1}, "
      "as PyTorch reads it, or -1 for the last");
  LossJob job;
  job.fixed_dim = 1;
  const at::Tensor one = Loss(job, square, target, "y");
  ExpectClose(one, MeanOfClasses(square.transpose(1, 2).reshape({-1, 3}).log_softmax(1),
                                 target.reshape({-1}), -100, 0));
  job.class_dim = -1;  // comes before what is known of sizes
  ExpectClose(Loss(job, square, target, "y"),
              MeanOfClasses(square.reshape({-1, 3}).log_softmax(1), target.reshape({-1}), -100, 0));
}

TEST(Loss, FollowsItsFormulas) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({4, 6}), y = at::randn({4, 6}), difference = (x - y).abs();
  const at::Tensor p = y.softmax(1), log_p = y.log_softmax(1);
  ExpectClose(Loss(Of(LossJob::kMse), x, y, "y"), difference.square().mean());
  ExpectClose(Loss(Of(LossJob::kL1), x, y, "y"), difference.mean());
  LossJob smooth = Of(LossJob::kSmoothL1);
  smooth.beta = 0.7;
  ExpectClose(
      Loss(smooth, x, y, "y"),
      at::where(difference < 0.7, difference.square() * (0.5 / 0.7), difference - 0.35).mean());
  ExpectClose(Loss(Of(LossJob::kBceWithLogits), x, p, "y"),
              -(p * x.sigmoid().log() + (1 - p) * (1 - x.sigmoid()).log()).mean());
  const at::Tensor divergence = p * (log_p - x);  // x: log probabilities
  LossJob kl = Of(LossJob::kKlDiv);
  ExpectClose(Loss(kl, x, p, "y"), divergence.mean());
  EXPECT_EQ(LossCount(kl, p, 4), 24);
  kl.batch_mean = true;
  ExpectClose(Loss(kl, x, p, "y"), divergence.sum() / 4);
  EXPECT_EQ(LossCount(kl, p, 4), 4);
  kl.log_target = true;
  ExpectClose(Loss(kl, x, log_p, "y"), divergence.sum() / 4);
  ExpectClose(Loss(Of(LossJob::kOutput), at::full({1, 1}, 2.5), {}, "y"), at::scalar_tensor(2.5));
}

TEST(Loss, CountsTheLikeliestClassAndTheFirstOnATie) {
  const at::Tensor logits = at::tensor({1., 5., 2., 4., 4., 0., 0., 1., 3.}).view({3, 3});
  EXPECT_EQ(LossHits(LossJob(), logits, at::tensor({1, 0, 2}, at::kLong)).item<int64_t>(), 3);
  EXPECT_EQ(LossHits(LossJob(), logits, at::tensor({1, 1, -100}, at::kLong)).item<int64_t>(), 1);
}

TEST(Loss, ErrorsNameTheTargetTypesAndSizes) {
  const at::Tensor logits = at::zeros({2, 3});
  EXPECT_EQ(
      ErrorOf([&] { Loss(LossJob(), logits, at::tensor({1, 3}, at::kLong), "y"); }),
      "y: target 3 is out of bounds: the output has 3 classes, 0 to 2\n  if 3 marks what does "
      "not count, say so: \"loss\": {\"type\": \"cross_entropy\", \"ignore_index\": 3}");
  EXPECT_EQ(ErrorOf([&] {
              CheckClasses(LossJob(), at::tensor({-100, -1}, at::kLong), 3, "y");
            }).substr(0, 32),
            "y: target -1 is out of bounds: t");
  EXPECT_EQ(ErrorOf([&] { CheckClasses(LossJob(), at::tensor({-100, 2}, at::kLong), 3, "y"); }),
            "");
  EXPECT_EQ(ErrorOf([&] { Loss(LossJob(), logits, at::zeros({2}, at::kInt), "y"); }),
            "y: cross_entropy needs an int64 target: output float32 [2, 3], target int32 [2]\n  "
            "save the targets as int64");
  EXPECT_EQ(ErrorOf([&] { Loss(Of(LossJob::kL1), logits, at::zeros({3, 2}), "y"); }),
            "y: l1 needs equal sizes: output float32 [2, 3], target float32 [3, 2]");
  EXPECT_EQ(ErrorOf([&] { Loss(Of(LossJob::kKlDiv), logits, at::zeros({2, 3}, at::kLong), "y"); }),
            "y: kl_div needs a target of probabilities: output float32 [2, 3], target int64 [2, 3]"
            "\n  save the targets as float32");
  EXPECT_EQ(ErrorOf([&] { Loss(Of(LossJob::kOutput), logits, {}, "y"); }),
            "loss: output 0 of the model has sizes [2, 3]; a loss is one number");
  EXPECT_EQ(CountClasses(LossJob(), {at::kFloat, {2, 9, 4}}, {at::kLong, {2, 4}}, "y"), 9);
}

}  // namespace
}  // namespace pipewright
