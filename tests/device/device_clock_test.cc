#include "runtime/stage/device_clock.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "gate.h"
#include "runtime/exec/clock.h"
#include "torch_device.h"

namespace pipewright {
namespace {

TEST(DeviceClock, TheCpuNeedsNoMarks) {
  DeviceClock clock(at::kCPU);
  clock.Begin();
  EXPECT_EQ(clock.Mark(), -1);
  EXPECT_EQ(clock.Reached(), 0);
}

TEST(DeviceClock, MomentsAreThoseOfTheDevice) {
  DeviceClock clock(at::Device("sim:0"));
  for (int round = 0; round < 2; ++round) {
    clock.Begin();
    const double before = Now();
    const int begin = clock.Mark();
    at::Tensor x = at::ones({300, 300}, at::device(at::Device("sim:0")));
    for (int i = 0; i < 20; ++i) x = at::mm(x, x).div(300);
    const int end = clock.Mark();
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 1);
    const double start = clock.Moment(begin), stop = clock.Moment(end), after = Now();
    EXPECT_GE(start, before);
    EXPECT_GT(stop, start);
    EXPECT_LE(stop, after);
    EXPECT_EQ(clock.Reached(), 2);
  }
}

TEST(DeviceClock, KnowsWhatTheDeviceHasReached) {
  DeviceClock clock(at::Device("sim:0"));
  clock.Begin();
  clock.Mark();
  while (clock.Reached() < 1) {
  }
  sim::Gate gate(sim::CurrentQueue(0));
  const int mark = clock.Mark();
  EXPECT_EQ(clock.Reached(), 1);
  EXPECT_TRUE(gate.StopsHost([&] { clock.Moment(mark); }));
  EXPECT_EQ(clock.Reached(), 2);
}

}  // namespace
}  // namespace pipewright
