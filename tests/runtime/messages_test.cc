#include "runtime/messages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/memory_meter.h"

namespace pipewright {

// A value that has been received can be used like any other, and gives its memory back.
TEST(Messages, ValuesInMemoryOfTheTransportAreLikeOthers) {
  size_t asked = 0;
  int live = 0;
  MemorySource memory = [&](size_t bytes) {
    asked = bytes, ++live;
    return std::shared_ptr<void>(std::aligned_alloc(4096, 4096), [&](void* p) {
      std::free(p);
      --live;
    });
  };
  at::Tensor value = EmptyTensor({3, 5}, at::kDouble, memory);
  EXPECT_EQ(asked, 120u);
  EXPECT_EQ(value.sizes(), (std::vector<int64_t>{3, 5}));
  EXPECT_TRUE(value.is_contiguous());
  EXPECT_EQ(value.nbytes(), 120u);
  EXPECT_EQ(value.storage().nbytes(), 120u);
  EXPECT_EQ(value.dtype(), at::kDouble);
  EXPECT_FALSE(value.requires_grad());
  EXPECT_EQ(value.key_set(), at::empty({3, 5}, at::kDouble).key_set());
  value.copy_(at::arange(15, at::kDouble).view({3, 5}));
  EXPECT_EQ(value.sum().item<double>(), 105);
  at::Tensor view = value[2];
  value.resize_({6, 5});  // moves it to memory of its own
  EXPECT_EQ(live, 0);
  EXPECT_EQ(value[1][4].item<double>(), 9);
  EXPECT_EQ(view[4].item<double>(), 14);

  {
    MemoryMeter meter;
    at::Tensor counted = EmptyTensor({100}, at::kFloat, memory);
    EXPECT_EQ(meter.live(), 400);
    counted.reset();
    EXPECT_EQ(meter.live(), 0);
    EXPECT_EQ(meter.peak(), 400);
  }

  at::Tensor kept = EmptyTensor({2}, at::kFloat, memory).view({2, 1});
  EXPECT_EQ(live, 1);
  kept.reset();
  EXPECT_EQ(live, 0);
  EXPECT_TRUE(EmptyTensor({}, at::kFloat, memory).dim() == 0);
  EXPECT_EQ(EmptyTensor({4}, at::kLong, nullptr).numel(), 4);
}

}  // namespace pipewright
