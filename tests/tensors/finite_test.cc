#include "tensors/finite.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace pipewright {

TEST(Finite, FindsEachWhereverItIs) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat,
                              at::kComplexDouble, at::kComplexHalf}) {
    const at::ScalarType real = at::isComplexType(type) ? c10::toRealValueType(type) : type;
    at::Tensor parts =
        at::full({20000}, real == at::kHalf ? 65504. : 3.38e38, at::kDouble).to(real);
    parts[1] = -parts[1], parts[2] = 1e-7, parts[3] = -0.;
    const at::Tensor numbers = parts.view(type);
    EXPECT_TRUE(AllFinite(numbers)) << type;
    EXPECT_EQ(NotFinite(numbers), "");
    for (int64_t place : {0, 4095, 4096, 19999})
      for (auto [bad, name] : {std::pair(std::numeric_limits<double>::quiet_NaN(), "nan"),
                               std::pair(std::numeric_limits<double>::infinity(), "inf"),
                               std::pair(-std::numeric_limits<double>::infinity(), "-inf")}) {
        const double good = parts[place].item<double>();
        parts[place] = bad;
        EXPECT_FALSE(AllFinite(numbers)) << type << place << name;
        const std::string_view bytes(static_cast<const char*>(numbers.data_ptr()),
                                     numbers.nbytes());
        EXPECT_FALSE(AllFinite(bytes, type)) << type << place << name;
        EXPECT_EQ(NotFinite(numbers), name) << type << place;
        parts[place] = good;
      }
  }
}

TEST(Finite, LooksAtWhatAViewShows) {
  at::Tensor numbers = at::ones({10, 10});
  numbers[3][4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(AllFinite(numbers.t()));
  EXPECT_FALSE(AllFinite(numbers.select(1, 4)));
  EXPECT_TRUE(AllFinite(numbers.select(1, 5)));
}

TEST(Finite, OtherTypesAreFinite) {
  EXPECT_TRUE(AllFinite(at::full({3}, 0x7f800000, at::kInt)));
  EXPECT_TRUE(AllFinite(at::full({3}, 0x7f, at::kByte).view(at::kFloat8_e4m3fn)));
  EXPECT_TRUE(AllFinite(at::full({3, 2}, 0x7f, at::kByte).view(at::kFloat8_e4m3fn).select(1, 0)));
  EXPECT_TRUE(AllFinite(at::empty({0})));
}

}  // namespace pipewright
