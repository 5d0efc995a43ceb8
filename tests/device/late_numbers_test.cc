#include "tensors/late_numbers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "gate.h"
#include "torch_device.h"

namespace pipewright {
namespace {

TEST(LateNumbers, OfTheCpuAreThereAtOnce) {
  LateNumbers late;
  double real = 0;
  int64_t whole = 0;
  late.Add(at::scalar_tensor(2.5), &real);
  late.Add(at::scalar_tensor(int64_t{7}, at::kLong), &whole);
  EXPECT_EQ(real, 2.5);
  EXPECT_EQ(whole, 7);
}

TEST(LateNumbers, OfADeviceAreThereAfterRead) {
  LateNumbers late;
  for (int round = 0; round < 2; ++round) {  // its memory is used again
    std::vector<double> reals(600, -1);      // more than a page
    int64_t whole = -1;
    for (size_t i = 0; i < reals.size(); ++i)
      late.Add(at::full({1, 1}, static_cast<double>(i) + round, at::device(at::Device("sim:0"))),
               &reals[i]);
    late.Add(at::isfinite(at::ones({3}, at::device(at::Device("sim:0")))).all(), &whole);
    while (!late.Ready()) {
    }
    late.Read();
    EXPECT_TRUE(late.Ready());
    for (size_t i = 0; i < reals.size(); ++i)
      ASSERT_EQ(reals[i], static_cast<double>(i) + round) << i;
    EXPECT_EQ(whole, 1);
  }
}

TEST(LateNumbers, OnlyReadWaitsForTheDevice) {
  LateNumbers late;
  double first = -1, second = -1;
  const at::Tensor three = at::full({1}, 3., at::device(at::Device("sim:0")));
  ASSERT_FALSE(sim::Gate(sim::CurrentQueue(0)).StopsHost([&] { late.Add(three, &first); }));
  while (!late.Ready()) {
  }
  sim::Gate gate(sim::CurrentQueue(0));
  late.Add(three.mul(2), &second);
  EXPECT_FALSE(late.Ready());
  EXPECT_TRUE(gate.StopsHost([&] { late.Read(); }));
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 6);
}

}  // namespace
}  // namespace pipewright
