#include "runtime/module/messages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "runtime/measure/memory_meter.h"

namespace pipewright {

// A received value can be used like any other, and frees its memory.
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
  value.resize_({6, 5});  // moves it to its own memory
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

// Received tensors have the layout and the numbers of the sent ones.
TEST(Messages, KeepTheStridesOfTensors) {
  const at::Tensor whole = at::arange(60, at::kFloat).view({3, 4, 5});
  const at::Tensor free = at::empty_strided({3, 1, 1, 4}, {4, 77, 1, 1}, at::kFloat).fill_(2);
  const Tensors given = {
      whole, whole.permute({2, 0, 1}), whole[1].t(), free, at::scalar_tensor(7, at::kLong),
      at::empty({0, 3}), whole.slice(2, 0, 0),
      // Repeated elements.
      whole.sum(1, true).expand({3, 4, 5}), at::ones({}).expand({2, 3}),
      whole.permute({2, 0, 1}).slice(1, 0, 1).expand({5, 2, 4}), whole.view({60}).unfold(0, 5, 2),
      whole.slice(2, 1, 4).unfold(2, 2, 1),
      // Gaps.
      whole.slice(2, 1, 3), whole.permute({2, 0, 1}).slice(0, 1, 4), whole[2].select(1, 3),
      // Memory with an offset.
      whole[1], whole.view({60}).slice(0, 7, 31).view({4, 6}).t(), whole[2][1][3]};
  std::vector<bool> there(given.size(), true);
  there[2] = false;
  Tensors sent, empty;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : given) {
    sent.push_back(ToTensor(tensor));
    empty.push_back(EmptyTensor(tensor.sizes(), tensor.scalar_type(), nullptr));
    bytes += static_cast<int64_t>(tensor.nbytes()) + LayoutBytes(tensor.sizes().size());
  }
  const Bundle from = MakeMessage(sent, there), to = MakeMessage(empty);
  ASSERT_EQ(from.regions.size(), to.regions.size());
  for (size_t i = 0; i < from.regions.size(); ++i) {
    ASSERT_EQ(from.regions[i].bytes, to.regions[i].bytes);
    bytes -= static_cast<int64_t>(from.regions[i].bytes);
    if (from.regions[i].bytes > 0)
      std::memcpy(to.regions[i].data, from.regions[i].data, from.regions[i].bytes);
  }
  EXPECT_EQ(bytes, 0);
  auto place = [](const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.data_ptr()) % 64; };
  const Tensors received = ReadMessage(to);
  for (size_t i = 0; i < given.size(); ++i) {
    ASSERT_EQ(received[i].defined(), i != 2);
    if (i == 2) continue;
    EXPECT_TRUE(at::equal(received[i], given[i])) << i;
    EXPECT_EQ(received[i].strides(), given[i].strides()) << i;
    EXPECT_EQ(place(received[i]), place(given[i])) << i;
  }
}

TEST(Messages, CopiesHaveTheStridesOfTheOriginals) {
  const at::Tensor whole = at::arange(60, at::kFloat).view({3, 4, 5});
  for (const at::Tensor& tensor : {whole.slice(2, 1, 3), whole[2], whole.unfold(2, 3, 1)}) {
    const at::Tensor copy = CopyAsItLies(tensor);
    EXPECT_FALSE(copy.is_alias_of(tensor));
    EXPECT_TRUE(at::equal(copy, tensor));
    EXPECT_EQ(copy.strides(), tensor.strides());
  }
  EXPECT_TRUE(HasRepeatedElements(whole.unfold(2, 3, 1)));
  EXPECT_TRUE(HasRepeatedElements(at::ones({}).expand({2})));
  EXPECT_FALSE(HasRepeatedElements(whole.slice(2, 1, 3).permute({2, 0, 1})));
  EXPECT_FALSE(HasRepeatedElements(whole.unfold(2, 2, 3)));
  EXPECT_FALSE(HasRepeatedElements(at::ones({}).expand({1})));
}

}  // namespace pipewright
