// Tests that a rank knows whether its device computes.
#include <gtest/gtest.h>

#include "gate.h"
#include "tests/runtime/small_package.h"
#include "torch_device.h"

namespace pipewright {
namespace {

TEST(TorchStages, KnowWhetherTheDeviceComputes) {
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
    auto computes = [&] { return stages.AwaitsDevice().kind == Awaited::kDevice; };
    // Calls `act` while the device is busy; AwaitsDevice must not miss what it launches.
    auto makes_it_compute = [&](const std::function<void()>& act) {
      stages.SetStep(data, 0);
      EXPECT_FALSE(computes());
      sim::Gate gate(sim::CurrentQueue(0));
      EXPECT_FALSE(computes());
      act();
      EXPECT_TRUE(computes());
      gate.Open();
      while (computes()) {
      }
      stages.ReadNumbers();
    };
    makes_it_compute([&] { stages.Forward(1, 0, stages.Forward(0, 0, {})); });  // a loss
    EXPECT_GT(stages.terms()[0][0].loss, 0);
    makes_it_compute([&] { stages.Mark(); });
    makes_it_compute([&] { stages.MergeBuffers(transport); });
  });
}

}  // namespace
}  // namespace pipewright
