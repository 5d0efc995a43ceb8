// Tests that a rank whose weights are on disk reads into a buffer only after its copy to the device
// has left it, and copies to a slot only after the computations that use it.
#include "runtime/stage/offload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "gate.h"
#include "tests/runtime/on_disk.h"
#include "torch_device.h"

namespace pipewright {
namespace {

// The stages take turns in one buffer and one slot.
struct OneBuffer : OnDisk {
  explicit OneBuffer(const std::string& name) : OnDisk(name) {
    list = ReadPlan("0LOAD,0F0,0EVICT,1LOAD,1F0,1EVICT\n", "plan").ranks[0];
    device = at::Device("sim:0");
  }
};

at::Tensor Use(OneBuffer& disk, OffloadedWeights& weights, int stage) {
  weights.Load(stage);
  weights.Bind(stage);
  const at::Tensor sum = disk.modules[stage].weights[0].sum();
  weights.Evict(stage);
  return sum;
}

bool AwaitsDevice(Transport& transport) {
  return transport.status().Read().awaits.kind == Awaited::kDevice;
}

TEST(OffloadedWeights, AreNotOverwrittenUntilTheDeviceHasUsedThem) {
  RunThreads(1, [](Transport& transport) {
    OneBuffer disk("device_disk.pkg");
    OffloadedWeights weights = disk.Open(transport, {{0}, {1}});
    at::Tensor sums[3];
    sim::Gate gate(sim::CurrentQueue(0));
    sums[0] = Use(disk, weights, 0);  // copied at once, and used when the gate opens
    sums[1] = Use(disk, weights, 1);  // copied then
    EXPECT_TRUE(gate.StopsHost([&] { sums[2] = Use(disk, weights, 0); },
                               [&] { return AwaitsDevice(transport); }));
    EXPECT_EQ(sums[0].item<float>(), 6);
    EXPECT_EQ(sums[1].item<float>(), 15);
    EXPECT_EQ(sums[2].item<float>(), 6);
    EXPECT_EQ(weights.stream().buffers().size(), 1u);
  });
}

TEST(OffloadedWeights, AreReleasedBeforeTheListChanges) {
  RunThreads(1, [](Transport& transport) {
    OneBuffer disk("device_follow.pkg");
    OffloadedWeights weights = disk.Open(transport, {{0}, {1}});
    sim::Gate gate(sim::CurrentQueue(0));
    for (int stage : {0, 1}) Use(disk, weights, stage);
    EXPECT_TRUE(
        gate.StopsHost([&] { weights.Follow(0); }, [&] { return AwaitsDevice(transport); }));
  });
}

}  // namespace
}  // namespace pipewright
