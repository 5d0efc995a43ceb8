// Tests that gradients are summed on a stream of their own, in the right order with the one that
// computes.
#include "runtime/stage/gradient_sums.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "gate.h"
#include "torch_device.h"

namespace pipewright {
namespace {

const at::Device kDevice("sim:0");

c10::Stream CurrentStream() {
  return c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice);
}

// One rank of two, which have copies of one weight. Rank 1 has no microbatch.
struct Rank {
  Manifest manifest;
  Conf conf{{0}, false, {{0, 1}}, {}};
  std::unique_ptr<GradientSums> sums;
  const int rank;

  explicit Rank(int number) : rank(number) {
    manifest.modules.resize(1);
    manifest.modules[0].held = {{"a", WeightKind::kParameter, "float32", {4}, true, true}};
    sums = std::make_unique<GradientSums>(manifest, conf, rank, kDevice, GradientOptions{});
    sums->ExchangeOnDevices({{{0, 1}, {1, 0}}, {}});
    sums->Hold(0, {at::zeros({4}, at::device(kDevice))});
  }
  Bundle Own() { return sums->Gradient(0, rank); }  // the holders are in the order of the ranks
  // Returns what the other rank sends.
  Bundle Theirs(float number) {
    const Bundle bundle = sums->Scratch(0, nullptr);
    TensorsOf(bundle)[0].fill_(number);
    TensorsOf(bundle)[1].fill_(true);
    return bundle;
  }
};

TEST(GradientSums, AreExchangedWhileTheDeviceComputes) {
  Rank me(0);
  const c10::Stream computing = CurrentStream();
  me.sums->Add(0, 0, {at::ones({4}, at::device(kDevice)).mul(2)});
  {
    const auto exchanging = me.sums->Exchanging(/*begins=*/true);
  }
  sim::Gate gate(sim::CurrentQueue(0));  // backward goes on
  {
    const auto exchanging = me.sums->Exchanging(/*begins=*/false);
    ASSERT_NE(CurrentStream(), computing);
    GradientSums::AddTo(me.Own(), me.Theirs(3));
    c10::Event added(kDevice.type());
    added.record(CurrentStream());
    while (!added.query()) {  // forever, if it came after the computations
    }
  }
  EXPECT_EQ(CurrentStream(), computing);
  gate.Open();
  {
    const auto exchanging = me.sums->Exchanging(/*begins=*/false);
    GradientSums::AddTo(me.Own(), me.Theirs(4));
  }
  me.sums->EndExchanges();
  EXPECT_EQ(me.sums->Take(0)[0].sum().item<float>(), 4 * (2 + 3 + 4));
}

// Its gradient is memory of the stream of exchanges, and is used and freed by computations.
TEST(GradientSums, OfARankWithoutMicrobatchesArriveAndAreFreed) {
  Rank me(1);
  for (int step = 0; step < 2; ++step) {
    {
      const auto exchanging = me.sums->Exchanging(/*begins=*/true);
      GradientSums::CopyTo(me.Own(), me.Theirs(5));
    }
    me.sums->EndExchanges();
    at::Tensor doubled = me.sums->Take(0)[0].mul(2);
    if (step > 0) {
      EXPECT_EQ(doubled.sum().item<float>(), 4 * 10);
    }
  }
}

}  // namespace
}  // namespace pipewright
