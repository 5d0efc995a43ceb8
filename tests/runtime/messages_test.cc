#include "runtime/module/messages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "runtime/measure/memory_meter.h"

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

// What a message brings lies as it did, and has the same numbers.
TEST(Messages, TensorsKeepTheirStrides) {
  const at::Tensor whole = at::arange(60, at::kFloat).view({3, 4, 5});
  const at::Tensor free = at::empty_strided({3, 1, 1, 4}, {4, 77, 1, 1}, at::kFloat).fill_(2);
  const Tensors dense = {whole, whole.permute({2, 0, 1}), whole[1].t(), free,
                         at::scalar_tensor(7, at::kLong), at::empty({0, 3})};
  const Tensors repeated = {whole.sum(1, true).expand({3, 4, 5}), at::ones({}).expand({2, 3}),
                            whole.permute({2, 0, 1}).slice(1, 0, 1).expand({5, 2, 4})};
  const Tensors gaps = {whole.slice(2, 1, 3), whole.permute({2, 0, 1}).slice(0, 1, 4),
                        whole.view({60}).unfold(0, 5, 2)};
  Tensors sent;
  for (const Tensors* group : {&dense, &repeated, &gaps})
    for (const at::Tensor& tensor : *group) sent.push_back(ToTensor(tensor));
  std::vector<bool> there(sent.size(), true);
  there[2] = false;
  Tensors empty;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : sent) {
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
  const Tensors received = ReadMessage(to);
  for (size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(received[i].defined(), i != 2);
    if (i == 2) continue;
    const size_t r = i - dense.size();
    const at::Tensor& given = i < dense.size()        ? dense[i]
                              : r < repeated.size() ? repeated[r]
                                                      : gaps[r - repeated.size()];
    EXPECT_TRUE(at::equal(received[i], given)) << i;
    EXPECT_EQ(received[i].strides(), sent[i].strides()) << i;
    if (r >= repeated.size() && i >= dense.size()) {
      EXPECT_TRUE(received[i].is_non_overlapping_and_dense()) << i;
    } else {
      EXPECT_EQ(received[i].strides(), given.strides()) << i;
    }
  }
  // The order of the strides is kept where the gaps are not.
  EXPECT_EQ(received[dense.size() + repeated.size() + 1].strides(), (std::vector<int64_t>{1, 12, 3}));
}

}  // namespace pipewright
