#include "ops/transformers_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace pipewright {

static at::Tensor GroupedMm(const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& offs) {
  RegisterTransformersOperators();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("transformers::grouped_mm_fallback", "")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>()
      .call(input, weight, offs);
}

// Computes the definition, one row after the other.
static at::Tensor ByRows(const at::Tensor& input, const at::Tensor& weight,
                         const std::vector<int64_t>& ends) {
  std::vector<at::Tensor> rows;
  size_t expert = 0;
  for (int64_t row = 0; row < input.size(0); ++row) {
    while (expert < ends.size() && ends[expert] <= row) ++expert;
    rows.push_back(expert < ends.size()
                       ? at::matmul(input[row], weight[static_cast<int64_t>(expert)])
                       : at::zeros({weight.size(2)}, input.options()));
  }
  return rows.empty() ? at::zeros({0, weight.size(2)}, input.options()) : at::stack(rows);
}

struct Experts {
  std::string name;
  int64_t rows;
  std::vector<int64_t> ends;
};

static const std::vector<Experts> kExperts = {{"each has rows", 7, {2, 3, 7}},
                                              {"the first is empty", 7, {0, 4, 7}},
                                              {"one between is empty", 7, {3, 3, 7}},
                                              {"the last is empty", 7, {3, 7, 7}},
                                              {"one has all", 7, {0, 7, 7}},
                                              {"rows of none", 7, {1, 1, 5}},
                                              {"all rows of none", 7, {0, 0, 0}},
                                              {"no rows", 0, {0, 0, 0}}};

TEST(GroupedMm, IsItsDefinition) {
  at::manual_seed(1);
  for (const Experts& c : kExperts)
    for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
      for (bool transposed : {false, true}) {
        const std::string what = c.name + ", " + c10::toString(type) + (transposed ? ", t" : "");
        const at::Tensor offs = at::tensor(c.ends, transposed ? at::kInt : at::kLong);
        std::vector<at::Tensor> found, expected;
        at::Tensor input = at::randn({c.rows, 4}, type).requires_grad_(true);
        at::Tensor weight =
            at::randn(transposed ? at::IntArrayRef{3, 5, 4} : at::IntArrayRef{3, 4, 5}, type)
                .requires_grad_(true);
        const at::Tensor given = transposed ? weight.transpose(1, 2) : weight;
        at::Tensor a = GroupedMm(input, given, offs), b = ByRows(input, given, c.ends);
        const double close = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2;
        EXPECT_EQ(a.scalar_type(), type) << what;
        EXPECT_TRUE(at::allclose(a, b, close, close)) << what << "\n" << a << b;
        // The gradient of a sum is an expanded scalar.
        a.sum().backward();
        found = {input.grad().clone(), weight.grad().clone()};
        input.mutable_grad().reset(), weight.mutable_grad().reset();
        if (b.requires_grad()) b.sum().backward();
        expected = {input.grad(), weight.grad()};
        for (size_t i = 0; i < 2; ++i) {
          if (!expected[i].defined()) expected[i] = at::zeros_like(found[i]);
          EXPECT_TRUE(at::allclose(found[i], expected[i], close, close)) << what << ", " << i;
        }
      }
}

TEST(GroupedMm, GradientIsTheSlope) {
  at::manual_seed(2);
  const at::Tensor offs = at::tensor(std::vector<int64_t>{2, 2, 5});
  at::Tensor input = at::randn({6, 3}, at::kDouble).requires_grad_(true);
  at::Tensor weight = at::randn({3, 3, 2}, at::kDouble).requires_grad_(true);
  const at::Tensor scale = at::randn({6, 2}, at::kDouble);
  auto value = [&] { return (GroupedMm(input, weight, offs).sin() * scale).sum(); };
  const auto found = torch::autograd::grad({value()}, {input, weight});
  at::NoGradGuard guard;
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < 2; ++i) {
    at::Tensor flat = (i ? weight : input).view({-1});
    for (int64_t k = 0; k < flat.size(0); ++k) {
      flat[k] += kStep;
      const double above = value().item<double>();
      flat[k] -= 2 * kStep;
      const double below = value().item<double>();
      flat[k] += kStep;
      EXPECT_NEAR(found[i].view({-1})[k].item<double>(), (above - below) / (2 * kStep), 1e-7);
    }
  }
}

TEST(GroupedMm, OneGradientAlone) {
  const at::Tensor offs = at::tensor(std::vector<int64_t>{1, 4});
  const at::Tensor input = at::randn({4, 3}), weight = at::randn({2, 3, 2});
  at::Tensor a = input.clone().requires_grad_(true), b = weight.clone().requires_grad_(true);
  const auto both = torch::autograd::grad({GroupedMm(a, b, offs).sum()}, {a, b});
  EXPECT_TRUE(at::equal(
      torch::autograd::grad({GroupedMm(a, weight, offs).sum()}, {a})[0], both[0]));
  EXPECT_TRUE(at::equal(
      torch::autograd::grad({GroupedMm(input, b, offs).sum()}, {b})[0], both[1]));
  EXPECT_FALSE(GroupedMm(input, weight, offs).requires_grad());
  EXPECT_THROW(GroupedMm(input, weight.transpose(1, 2), offs), c10::Error);
  EXPECT_THROW(GroupedMm(input, weight, offs.to(at::kFloat)), c10::Error);
}

// A second derivative, which transformers lacks, is refused.
TEST(GroupedMm, NoSecondDerivative) {
  at::Tensor input = at::randn({4, 3}).requires_grad_(true);
  at::Tensor weight = at::randn({2, 3, 2}).requires_grad_(true);
  at::Tensor y = GroupedMm(input, weight, at::tensor(std::vector<int64_t>{1, 4})).square().sum();
  EXPECT_THROW(torch::autograd::grad({y}, {input}, {}, true, /*create_graph=*/true), c10::Error);
}

}  // namespace pipewright
