// Tests that weights are copied to a device while it computes, and that nothing is overwritten that
// is still in use.
#include "runtime/stage/weight_copies.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gate.h"
#include "runtime/disk/weight_layout.h"
#include "tensors/device_memory.h"
#include "torch_device.h"

namespace pipewright {

namespace {

const at::Device kDevice("sim:0");

struct Weights {
  WeightCopies copies{kDevice};
  std::shared_ptr<void> memory;
  float* numbers = nullptr;
  Weights() : memory(copies.Allocate(8192)), numbers(static_cast<float*>(memory.get())) {}
  at::Tensor Tensor() {
    return copies.Tensor(0, reinterpret_cast<const char*>(numbers + 16), {2, 8}, at::kFloat);
  }
};

TEST(WeightCopies, ComputationsSeeWhatWasRead) {
  Weights weights;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.numbers) % kBlock, 0u);
  const void* memory = nullptr;
  for (float value = 1; value < 4; ++value) {
    std::fill_n(weights.numbers, 2048, value);
    weights.copies.Copy(0, 4096);
    const at::Tensor weight = weights.Tensor();
    EXPECT_EQ(weight._version(), 0);
    EXPECT_TRUE(weights.copies.Holds(0, weight.t()));
    EXPECT_FALSE(weights.copies.Holds(0, weight + 1));
    EXPECT_TRUE(!memory || memory == MemoryOf(weight));
    memory = MemoryOf(weight);
    const at::Tensor sum = weight.sum();
    weights.copies.Release(0);
    while (!weights.copies.Copied(0)) {
    }
    EXPECT_EQ(sum.item<float>(), 16 * value);
  }
  EXPECT_EQ(weights.copies.count(), 3);
}

TEST(WeightCopies, ABufferIsInUseUntilItsCopyIsDone) {
  Weights weights;
  EXPECT_TRUE(weights.copies.Copied(0));
  std::fill_n(weights.numbers, 2048, 1.f);
  sim::Gate gate(sim::CurrentQueue(0));
  weights.copies.Release(0);  // the slot is in use until the gate opens
  EXPECT_FALSE(gate.StopsHost([&] {
    weights.copies.Copy(0, 4096);
    EXPECT_FALSE(weights.copies.Copied(0));
  }));
  EXPECT_EQ(weights.Tensor().sum().item<float>(), 16);
  EXPECT_TRUE(weights.copies.Copied(0));
}

TEST(WeightCopies, ACopyRunsWhileTheDeviceComputes) {
  Weights weights;
  std::fill_n(weights.numbers, 2048, 1.f);
  sim::Gate gate(sim::CurrentQueue(0));
  weights.copies.Copy(0, 4096);
  while (!weights.copies.Copied(0)) {  // forever, if it came after the computations
  }
  std::fill_n(weights.numbers, 2048, 2.f);  // the next weights
  gate.Open();
  EXPECT_EQ(weights.Tensor().sum().item<float>(), 16);
}

TEST(WeightCopies, MemoryIsKeptUntilItsCopyIsDone) {
  for (int i = 0; i < 10; ++i) {
    Weights weights;
    weights.copies.Copy(0, 8192);
  }
  EXPECT_EQ(at::ones({4}, at::device(kDevice)).sum().item<float>(), 4);
}

}  // namespace

}  // namespace pipewright
