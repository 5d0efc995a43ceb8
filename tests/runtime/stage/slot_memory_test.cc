#include "runtime/stage/slot_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

namespace pipewright {
namespace {

// Counts the memory of a transport.
struct Counted {
  int64_t live = 0, asked = 0;
  MemorySource source() {
    return [this](size_t bytes) {
      ++asked;
      live += static_cast<int64_t>(bytes);
      return std::shared_ptr<void>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096),
                                   [this, bytes](void* p) {
                                     std::free(p);
                                     live -= static_cast<int64_t>(bytes);
                                   });
    };
  }
};

std::vector<SlotMemory::Part> Parts(const std::vector<TensorSpec>& specs) {
  std::vector<SlotMemory::Part> parts;
  for (const TensorSpec& spec : specs) parts.push_back({{&spec}});
  return parts;
}

std::vector<void*> Addresses(const Bundle& bundle) {
  std::vector<void*> addresses;
  for (const Region& region : bundle.regions) addresses.push_back(region.data);
  return addresses;
}

// Copies the content of `tensors` into the regions of `to`, like a transport.
void Receive(const Tensors& tensors, const Bundle& to) {
  const Bundle from = MakeMessage(tensors);
  ASSERT_EQ(from.regions.size(), to.regions.size());
  for (size_t i = 0; i < from.regions.size(); ++i) {
    ASSERT_EQ(from.regions[i].bytes, to.regions[i].bytes);
    std::memcpy(to.regions[i].data, from.regions[i].data, from.regions[i].bytes);
  }
}

TEST(SlotMemory, AMessageThatIsUsedUpLeavesItsMemoryToTheNext) {
  Counted memory;
  for (bool of_transport : {true, false}) {
    SlotMemory slots(of_transport ? memory.source() : MemorySource());
    const std::vector<TensorSpec> specs = {{at::kFloat, {4, 5}}, {at::kLong, {}}};
    const std::vector<void*> first = Addresses(slots.Receive({2, false, 0}, Parts(specs)));
    ASSERT_EQ(first.size(), 3u);
    for (void* address : first) EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 64, 0u);
    for (int i = 0; i < 10; ++i) {
      const Bundle message = slots.Receive({2, false, 0}, Parts(specs));
      EXPECT_EQ(Addresses(message), first);
      const at::Tensor values = at::arange(20, at::kFloat).view({5, 4}).t().mul(i);
      Receive({values, at::scalar_tensor(i, at::kLong)}, message);
      const Tensors got = ReadMessage(message);
      EXPECT_TRUE(at::equal(got[0], values));
      EXPECT_EQ(got[0].strides(), values.strides());
      EXPECT_EQ(got[0].storage().nbytes(), 80u);
      EXPECT_EQ(got[1].item<int64_t>(), i);
    }
    EXPECT_EQ(slots.allocations(), 3);
    // Slots with other numbers, directions and edges have separate memory.
    std::set<void*> all(first.begin(), first.end());
    for (const ReceiveSlot& other : {ReceiveSlot{2, false, 1}, {2, true, 0}, {3, false, 0}})
      for (void* address : Addresses(slots.Receive(other, Parts(specs))))
        EXPECT_TRUE(all.insert(address).second);
    EXPECT_EQ(slots.allocations(), 12);
  }
  EXPECT_EQ(memory.live, 0);
  EXPECT_EQ(memory.asked, 8);  // the transport does not allocate layouts
}

// A received tensor that anything refers to is never overwritten, and nothing else is kept.
TEST(SlotMemory, DoesNotOverwriteWhatIsReferredTo) {
  SlotMemory slots(nullptr);
  const std::vector<TensorSpec> specs = {{at::kFloat, {6}}};
  const ReceiveSlot slot = {0, false, 0};
  at::Tensor weight = at::ones({6}).requires_grad_(true);
  std::vector<std::function<at::Tensor(const at::Tensor&)>> holders = {
      [](const at::Tensor& t) { return t; },
      [](const at::Tensor& t) { return t.detach(); },
      [](const at::Tensor& t) { return t.view({2, 3})[1]; },
      [](const at::Tensor& t) { return t.view(at::kInt); },
      [](const at::Tensor& t) { return t.alias().set_(t.storage()); },
      // Autograd has saved it for the gradient of the weight.
      [&](const at::Tensor& t) { return (t * weight).sum(); }};
  for (auto& hold : holders) {
    Bundle message = slots.Receive(slot, Parts(specs));
    void* const address = message.regions[0].data;
    Receive({at::arange(6, at::kFloat)}, message);
    at::Tensor held = hold(ReadMessage(message)[0]);
    message = {};
    Bundle next = slots.Receive(slot, Parts(specs));
    EXPECT_NE(next.regions[0].data, address);
    Receive({at::full({6}, 99.)}, next);
    if (held.requires_grad()) {
      held.backward();
      EXPECT_TRUE(at::equal(weight.grad(), at::arange(6, at::kFloat)));
    }
    next = {};
    held.reset();
    EXPECT_EQ(slots.Receive(slot, Parts(specs)).regions[0].data, address);
  }
  EXPECT_EQ(slots.allocations(), 3);  // two of the tensor, one layout
}

// A list has as many blocks as were in use at once, and reuses them in the same order.
TEST(SlotMemory, AllocatesNoMoreThanIsInUseAtOnce) {
  Counted memory;
  SlotMemory slots(memory.source());
  const std::vector<TensorSpec> specs = {{at::kDouble, {100}}};
  std::vector<std::vector<void*>> addresses;
  for (int step = 0; step < 5; ++step) {
    std::vector<Bundle> in_use;
    addresses.emplace_back();
    for (int i = 0; i < 12; ++i) {
      if (in_use.size() == 4) in_use.erase(in_use.begin());
      in_use.push_back(slots.Receive({0, false, 0}, Parts(specs)));
      addresses.back().push_back(in_use.back().regions[0].data);
    }
  }
  for (const auto& step : addresses) EXPECT_EQ(step, addresses[0]);
  EXPECT_EQ(std::set<void*>(addresses[0].begin(), addresses[0].end()).size(), 4u);
  EXPECT_EQ(memory.live, 4 * 800);
  EXPECT_EQ(memory.asked, 4);
}

// Sizes and dtypes that change.
TEST(SlotMemory, ABlockGrowsToTheLargestMessage) {
  Counted memory;
  SlotMemory slots(memory.source());
  const std::vector<std::pair<TensorSpec, int64_t>> messages = {
      {{at::kFloat, {2, 3}}, 24}, {{at::kFloat, {5, 3}}, 60}, {{at::kFloat, {0, 3}}, 60},
      {{at::kHalf, {5, 3}}, 60},  {{at::kDouble, {5, 3}}, 120}, {{at::kBool, {}}, 120}};
  for (const auto& [spec, held] : messages) {
    const Bundle message = slots.Receive({0, true, 3}, {{&spec}});
    const at::Tensor& tensor = TensorsOf(message)[0];
    EXPECT_EQ(tensor.sizes(), spec.sizes);
    EXPECT_EQ(tensor.scalar_type(), spec.type);
    EXPECT_EQ(static_cast<int64_t>(message.regions[0].bytes), spec.bytes());
    EXPECT_EQ(static_cast<int64_t>(tensor.storage().nbytes()), spec.bytes());
    EXPECT_EQ(memory.live, held);
  }
  EXPECT_EQ(memory.asked, 3);
}

// A stage that grows a received tensor takes new memory for it; the slot keeps its own.
TEST(SlotMemory, ATensorThatIsResizedLeavesTheSlot) {
  SlotMemory slots(nullptr);
  const TensorSpec spec = {at::kFloat, {4}};
  Bundle message = slots.Receive({0, false, 0}, {{&spec}});
  void* const address = message.regions[0].data;
  at::Tensor tensor = TensorsOf(message)[0];
  tensor.fill_(1).resize_({1000});
  EXPECT_NE(tensor.data_ptr(), address);
  EXPECT_EQ(tensor[3].item<float>(), 1);
  message = {};
  EXPECT_EQ(slots.Receive({0, false, 0}, {{&spec}}).regions[0].data, address);
}

// A thread of a transport may be the last to release a message.
TEST(SlotMemory, AnotherThreadMayReleaseAMessage) {
  SlotMemory slots(nullptr);
  const TensorSpec spec = {at::kInt, {1024}};
  for (int i = 0; i < 200; ++i) {
    Bundle message = slots.Receive({0, false, 0}, {{&spec}});
    TensorsOf(message)[0].fill_(i);
    std::thread reader([message = std::move(message), i] {
      EXPECT_TRUE(TensorsOf(message)[0].eq(i).all().item<bool>());
    });
    message = {};
    TensorsOf(slots.Receive({0, false, 0}, {{&spec}}))[0].fill_(-1);
    reader.join();
  }
  EXPECT_LE(slots.allocations(), 4);
}

}  // namespace
}  // namespace pipewright
