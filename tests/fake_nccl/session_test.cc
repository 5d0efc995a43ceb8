// Tests that a session whose values travel between devices lets the watchdog hear when it waits for
// its device.
#include <gtest/gtest.h>

#include "tests/device/gate.h"
#include "tests/device/torch_device.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

// Calls `gathers` in the next AllGather.
struct Hooked : WrappedTransport {
  using WrappedTransport::WrappedTransport;
  std::function<void()> gathers;
  std::vector<std::string> AllGather(const std::string& bytes) override {
    if (gathers) std::exchange(gathers, nullptr)();
    return WrappedTransport::AllGather(bytes);
  }
};

TEST(Session, SaysThatItWaitsForItsDevice) {
  const std::string package = SmallPackage("device_session.pkg");
  Conf conf;
  conf.module_to_stage = {0, 0};
  conf.stage_to_ranks = {{0, 1}};
  WriteFile(package + "/conf/mp_conf.json", WriteConf(conf));
  RunThreads(2, [&](Transport& inner) {
    SmallData data;
    Hooked transport(inner);
    Session session(transport);
    session.job = SmallJob();
    session.job.merge_buffers = true;
    SessionOptions options;
    options.package = package;
    options.device = "auto";
    options.links = DeviceLinks::kNccl;
    session.Open(options);
    session.Load({&data});
    session.Start();
    for (int step : {0, 1}) session.Step(data, step);
    auto waits = [&] { return inner.status().Read().awaits.kind == Awaited::kDevice; };
    sim::Queue& queue = sim::CurrentQueue(static_cast<c10::DeviceIndex>(inner.rank()));
    // Each rank's device stops before a step, and between its numbers and its buffers.
    EXPECT_TRUE(sim::Gate(queue).StopsHost([&] { session.Step(data, 2); }, waits));
    sim::Gate gate;
    transport.gathers = [&] { gate.Hold(queue); };
    EXPECT_TRUE(gate.StopsHost([&] { session.Step(data, 3); }, waits));
  });
}

}  // namespace
}  // namespace pipewright
