// Tests that the watchdog hears of it when a rank waits for its device.
#include <gtest/gtest.h>

#include "gate.h"
#include "runtime/module/messages.h"
#include "tests/runtime/small_package.h"
#include "torch_device.h"

namespace pipewright {
namespace {

TEST(TorchStages, LetTheWatchdogHearOfWaitsForTheDevice) {
  const std::string package = SmallPackage("device_stages.pkg", {0, 0});
  SmallData data;
  RunThreads(1, [&](Transport& transport) {
    Session session(transport);
    session.job = SmallJob();
    session.job.merge_buffers = true;
    session.job.stop_on_nan = false;
    SessionOptions options;
    options.package = package;
    options.device = "sim:0";
    session.Open(options);
    session.Load({&data});
    session.Start();
    TorchStages& stages = *session.stages;
    auto waits = [&] { return transport.status().Read().awaits.kind == Awaited::kDevice; };
    // Keeps the device busy with what `launch` launches until the host waits in `act`.
    auto hears_of = [&](const std::function<void()>& launch, const std::function<void()>& act) {
      stages.SetStep(data, 0);
      sim::Gate gate(sim::CurrentQueue(0));
      launch();
      EXPECT_FALSE(waits());
      EXPECT_TRUE(gate.StopsHost(act, waits));
    };
    auto forward = [&] { stages.Forward(1, 0, stages.Forward(0, 0, {})); };  // with a loss
    hears_of(forward, [&] { stages.ReadNumbers(); });
    EXPECT_GT(stages.terms()[0][0].loss, 0);
    hears_of(forward, [&] { stages.SetStep(data, 1); });
    stages.ReadNumbers();
    const at::Tensor message = at::ones({3}, at::device(at::Device("sim:0")));
    hears_of([] {}, [&] { stages.OnHost(MakeBundle({message})); });
    session.job.stop_on_nan = true;  // a run that only evaluates then looks at each loss
    session.options.training = false;
    stages.SetTraining(false);
    hears_of([] {}, forward);
  });
}

}  // namespace
}  // namespace pipewright
