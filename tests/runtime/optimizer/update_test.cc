#include "runtime/optimizer/update.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "runtime/transport/thread_transport.h"

namespace pipewright {
namespace {

// "a" and the first copy of "tied" on rank 0, the second copy and "b" on rank 1.
Manifest Example() {
  Manifest m;
  m.modules.resize(2);
  m.modules[0].held = {{"a", WeightKind::kParameter, "float32", {2}, true, true},
                       {"tied", WeightKind::kParameter, "float32", {1}, true, true}};
  m.modules[1].held = {{"tied", WeightKind::kParameter, "float32", {1}, true, true},
                       {"b", WeightKind::kParameter, "float32", {2}, true, true}};
  m.shared = {{{{0, "tied"}, {1, "tied"}}}};
  return m;
}

OptimizerJob Sgd(double lr) {
  OptimizerJob job;
  job.lr = lr;
  return job;
}

using Tensors = std::vector<at::Tensor>;

// Holds the outcome, weights and loss scale of one rank after a step with these gradients.
struct Result {
  StepOutcome outcome;
  Tensors weights;
  LossScale scale;
};

// Runs steps on two ranks, each with its module; `gradients`: [step][rank][weight].
std::vector<Result> RunSteps(const OptimizerJob& optimizer, const LossScaleJob& scale,
                             FiniteCheck check, const std::vector<std::vector<Tensors>>& gradients,
                             int64_t parts, int bad_loss_rank = -1) {
  const Manifest manifest = Example();
  std::vector<Result> results(2);
  RunThreads(2, [&](Transport& transport) {
    const int rank = transport.rank();
    Updater updater(manifest, optimizer, scale, false, check);
    Result& result = results[static_cast<size_t>(rank)];
    result.weights = rank == 0 ? Tensors{at::zeros({2}), at::zeros({1})}
                               : Tensors{at::zeros({1}), at::zeros({2})};
    updater.Hold(rank, result.weights);
    for (size_t step = 0; step < gradients.size(); ++step) {
      updater.Begin(static_cast<int64_t>(step), parts);
      Tensors mine;
      for (const at::Tensor& gradient : gradients[step][static_cast<size_t>(rank)])
        mine.push_back(gradient.defined() ? gradient.clone() : gradient);
      updater.Step(rank, mine);
      for (const at::Tensor& gradient : mine) EXPECT_FALSE(gradient.defined());
      result.outcome = updater.Agree(transport, bad_loss_rank == rank);
      updater.Commit(result.outcome);
      result.scale = updater.loss_scale();
    }
  });
  return results;
}

at::Tensor Floats(std::vector<float> values) { return at::tensor(values); }

// Clips to a norm in which the tied weight counts once: sqrt(9 + 16 + 144) = 13 with `parts` 2.
TEST(Updater, ClipsToTheNormOfAllRanks) {
  OptimizerJob job = Sgd(1);
  job.clip_norm = 6.5;
  const at::Tensor tied = Floats({8});
  const auto results =
      RunSteps(job, {}, FiniteCheck::kNone, {{{Floats({6, 0}), tied}, {tied, Floats({0, 24})}}}, 2);
  const double factor = 6.5 / (13 + 1e-6);
  for (const Result& result : results) EXPECT_DOUBLE_EQ(result.outcome.norm, 13);
  EXPECT_TRUE(at::allclose(results[0].weights[0], Floats({3, 0}) * -factor));
  EXPECT_TRUE(at::equal(results[0].weights[1], results[1].weights[0]));
  EXPECT_TRUE(at::allclose(results[0].weights[1], Floats({4}) * -factor));
  EXPECT_TRUE(at::allclose(results[1].weights[1], Floats({0, 12}) * -factor));
  // A smaller norm than the limit changes nothing.
  job.clip_norm = 14;
  const auto whole =
      RunSteps(job, {}, FiniteCheck::kNone, {{{Floats({6, 0}), tied}, {tied, Floats({0, 24})}}}, 2);
  EXPECT_TRUE(at::equal(whole[0].weights[0], Floats({-3, 0})));
}

// A step with an overflow on one rank is skipped on all; the scale shrinks, and grows again after
// `interval` good steps.
TEST(Updater, ScalesLossesAndSkipsOverflows) {
  LossScaleJob scale{.used = true, .initial = 8, .growth = 4, .backoff = 0.5, .interval = 2};
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<Tensors> good = {{Floats({8, 16}), Floats({0})}, {Floats({0}), Floats({0, 0})}};
  const std::vector<Tensors> bad = {{Floats({8, 16}), Floats({0})},
                                    {Floats({0}), Floats({0, inf})}};
  auto results = RunSteps(Sgd(1), scale, FiniteCheck::kNone, {bad}, 1);
  for (const Result& result : results) {
    EXPECT_TRUE(result.outcome.skipped);
    EXPECT_EQ(result.scale, (LossScale{4, 0}));
    for (const at::Tensor& weight : result.weights) EXPECT_EQ(weight.abs().sum().item<float>(), 0);
  }
  results = RunSteps(Sgd(1), scale, FiniteCheck::kNone, {good, good}, 1);
  EXPECT_TRUE(at::equal(results[0].weights[0], Floats({-2, -4})));  // 2 steps of gradient / 8
  EXPECT_EQ(results[1].scale, (LossScale{32, 0}));
  EXPECT_EQ(RunSteps(Sgd(1), scale, FiniteCheck::kNone, {good, bad, good}, 1)[0].scale,
            (LossScale{4, 1}));
}

// A constant scale of 1 changes no gradient, and yet skips overflows.
TEST(Updater, AScaleOfOneSkipsOverflowsToo) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<Tensors> good = {{Floats({3, 0}), Floats({0})}, {Floats({0}), Floats({0, 4})}};
  const std::vector<Tensors> bad = {{Floats({3, 0}), Floats({0})}, {Floats({0}), Floats({0, inf})}};
  for (double factor : {1., 2.}) {
    const LossScaleJob scale{.used = true, .initial = factor};
    for (const Result& result : RunSteps(Sgd(1), scale, FiniteCheck::kNone, {bad}, 1)) {
      EXPECT_TRUE(result.outcome.skipped) << factor;
      for (const at::Tensor& weight : result.weights)
        EXPECT_EQ(weight.abs().sum().item<float>(), 0) << factor;
    }
    for (const Result& result : RunSteps(Sgd(1), scale, FiniteCheck::kNone, {good}, 1)) {
      EXPECT_FALSE(result.outcome.skipped) << factor;
      EXPECT_DOUBLE_EQ(result.outcome.norm, 5 / factor);
      EXPECT_EQ(result.scale, (LossScale{factor, 0}));
    }
  }
}

TEST(Updater, AllRanksHearOfLossesAndGradientsThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Tensors> fine = {{Floats({1, 1}), {}}, {{}, Floats({1, 1})}};
  const std::vector<Tensors> bad = {{Floats({1, 1}), {}}, {{}, Floats({nan, 1})}};
  for (double clip : {0., 1.}) {
    OptimizerJob job = Sgd(1);
    job.clip_norm = clip;
    for (const Result& result : RunSteps(job, {}, FiniteCheck::kAll, {bad}, 1)) {
      EXPECT_TRUE(result.outcome.not_finite);
      EXPECT_FALSE(result.outcome.bad_loss);
    }
    for (const Result& result : RunSteps(job, {}, FiniteCheck::kAll, {fine}, 1, 1)) {
      EXPECT_FALSE(result.outcome.not_finite);
      EXPECT_TRUE(result.outcome.bad_loss);
    }
  }
  // Each rank throws if they cannot agree.
  Updater updater(Example(), Sgd(1), {}, false, FiniteCheck::kEach);
  updater.Hold(0, {at::zeros({2}), at::zeros({1})});
  Tensors gradients = {Floats({1, nan}), {}};
  try {
    updater.Step(0, gradients);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              std::string("the gradient of \"a\": is nan\n  ") + kNotFiniteCure);
  }
}

TEST(Updater, TrainsSixteenBitWeightsThroughTheirMasters) {
  OptimizerJob job = Sgd(1);
  job.master_weights = true;
  Updater updater(Example(), job, {}, true, FiniteCheck::kNone);
  const at::Tensor weight = at::ones({2}, at::kBFloat16);
  updater.Hold(0, {weight, at::zeros({1})});
  EXPECT_FALSE(updater.trained());
  // Each step is too small for bfloat16 next to 1, where its spacing is 1/128 or 1/256.
  for (int step = 0; step < 8; ++step) {
    updater.Begin(step, 1);
    Tensors gradients = {at::full({2}, 1. / 1024, at::kBFloat16), {}};
    updater.Step(0, gradients);
  }
  EXPECT_TRUE(updater.trained());
  EXPECT_TRUE(at::equal(weight, at::full({2}, 1 - 8. / 1024, at::kBFloat16)));
  const auto state = updater.StateTensors(0, 0);
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(state[0].first, "master");
  EXPECT_EQ(updater.Steps(0, 0), 8);
  EXPECT_EQ(updater.Steps(0, 1), 0);
  EXPECT_TRUE(at::equal(updater.LastGradient(0, 0), at::full({2}, 1. / 1024, at::kBFloat16)));
  EXPECT_FALSE(updater.LastGradient(0, 1).defined());
}

// A job may begin or cease to have them when it is resumed.
TEST(Updater, TakesStatesWithAndWithoutMasters) {
  for (const bool with : {false, true}) {
    OptimizerJob job = Sgd(1);
    job.kind = OptimizerJob::kAdam;
    job.master_weights = with;
    Updater updater(Example(), job, {}, true, FiniteCheck::kNone);
    const at::Tensor weight = at::ones({2}, at::kBFloat16);
    updater.Hold(0, {weight, at::zeros({1})});
    OptimizerState state;
    const at::ScalarType other = with ? at::kBFloat16 : at::kFloat;
    state.average = at::zeros({2}, other), state.average_sq = at::zeros({2}, other);
    if (!with) state.master = at::zeros({2});  // of another weight by now
    updater.SetState(0, 0, state);
    updater.Begin(0, 1);
    Tensors gradients = {at::ones({2}, at::kBFloat16), {}};
    updater.Step(0, gradients);
    EXPECT_TRUE(at::allclose(weight.to(at::kFloat), at::zeros({2}), 0, 0.02)) << weight;
    EXPECT_EQ(updater.StateTensors(0, 0).size(), with ? 3u : 2u);
  }
}

// States on disk make the same updates, and take no memory between steps.
TEST(Updater, StatesOnDiskGiveTheSameBits) {
  std::vector<at::Tensor> weights;
  for (bool on_disk : {false, true}) {
    OptimizerJob job = Sgd(0.1);
    job.kind = OptimizerJob::kAdam;
    job.rate.kind = RateJob::kStep;  // a tenth of the rate from step 2 on
    job.rate.every = 2;
    job.state_on_disk = on_disk;
    job.state_folder = testing::TempDir();
    Updater updater(Example(), job, {}, false, FiniteCheck::kNone);
    weights.push_back(at::ones({2}));
    updater.Hold(0, {weights.back(), at::zeros({1})});
    at::manual_seed(4);
    for (int step = 0; step < 3; ++step) {
      updater.Begin(step, 1);
      EXPECT_DOUBLE_EQ(updater.learning_rate(), step < 2 ? 0.1 : 0.01);
      Tensors gradients = {at::randn({2}), {}};
      updater.Step(0, gradients);
    }
    EXPECT_EQ(updater.StateBytesOnDisk(), on_disk ? 2 * 2 * 4u : 0u);  // two averages
  }
  EXPECT_TRUE(at::equal(weights[0], weights[1]));
}

}  // namespace
}  // namespace pipewright
