// Compares the geometry of tensors: recorded lists run only on inputs of the recorded one.
#include "runtime/recorded/graph.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace pipewright {
namespace {

TEST(Geometry, HasTheSizesStridesAndTypeOfATensor) {
  const Geometry geometry = Geometry::Of(at::zeros({2, 3}, at::kDouble).t());
  EXPECT_EQ(geometry.sizes, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(geometry.strides, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(geometry.type, at::kDouble);
  EXPECT_FALSE(geometry.number);
  const Geometry none = Geometry::Of(at::scalar_tensor(1));
  EXPECT_TRUE(none.sizes.empty() && none.strides.empty());
}

TEST(Geometry, FitsTensorsOfOtherValuesOnly) {
  const at::Tensor x = at::randn({2, 3});
  const Geometry geometry = Geometry::Of(x);
  EXPECT_TRUE(geometry.Fits(x));
  EXPECT_TRUE(geometry.Fits(at::ones({2, 3})));
  EXPECT_TRUE(geometry.Fits(at::ones({5, 3}).slice(0, 1, 3)));  // an offset does not matter
  EXPECT_FALSE(geometry.Fits(at::ones({3, 2})));
  EXPECT_FALSE(geometry.Fits(at::ones({1, 2, 3})));
  EXPECT_FALSE(geometry.Fits(at::ones({3, 2}).t()));  // the same sizes
  EXPECT_FALSE(geometry.Fits(at::ones({2, 6}).slice(1, 0, 3)));
  for (at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16, at::kLong})
    EXPECT_FALSE(geometry.Fits(at::ones({2, 3}, type))) << type;
  EXPECT_FALSE(geometry.Fits(at::empty({2, 3}, at::device(at::kMeta))));
  const Geometry empty = Geometry::Of(at::ones({0, 3}));
  EXPECT_TRUE(empty.Fits(at::empty({0, 3})));
  EXPECT_FALSE(empty.Fits(at::empty({3, 0})));
}

TEST(Geometry, TellsConjugatedAndNegatedReadsApart) {
  const at::Tensor x = at::ones({2}, at::kComplexFloat);
  const Geometry plain = Geometry::Of(x), conjugated = Geometry::Of(x.conj()),
                 negated = Geometry::Of(at::imag(x.conj())), part = Geometry::Of(at::imag(x));
  EXPECT_TRUE(conjugated.Fits(at::zeros({2}, at::kComplexFloat).conj()));
  EXPECT_FALSE(plain.Fits(x.conj()));
  EXPECT_FALSE(conjugated.Fits(x));
  EXPECT_TRUE(part.Fits(at::imag(x)));
  EXPECT_FALSE(part.Fits(at::imag(x.conj())));
  EXPECT_FALSE(negated.Fits(at::imag(x)));
}

// A number takes part in type promotion less than a tensor without dimensions does.
TEST(Geometry, TellsNumbersAndTensorsWithoutDimensionsApart) {
  at::Tensor number = at::scalar_tensor(2., at::kDouble), tensor = number.clone();
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_EQ((number + at::ones({1})).scalar_type(), at::kFloat);
  EXPECT_TRUE(Geometry::Of(number).number);
  EXPECT_TRUE(Geometry::Of(number).Fits(number));
  EXPECT_FALSE(Geometry::Of(number).Fits(tensor));
  EXPECT_FALSE(Geometry::Of(tensor).Fits(number));
  EXPECT_TRUE(Geometry::Of(tensor).Fits(at::scalar_tensor(3., at::kDouble)));
}

}  // namespace
}  // namespace pipewright
