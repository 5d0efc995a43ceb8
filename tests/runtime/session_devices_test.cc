#include "runtime/session_devices.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "compiler/compile.h"
#include "compiler/trace.h"
#include "runtime/transport/thread_transport.h"
#include "tests/error_text.h"

namespace pipewright {
namespace {

struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl() {
    for (int i = 0; i < 3; ++i)
      layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(4, 4)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (int i = 0; i < 3; ++i) {
      if (i > 0) pipe_split();
      x = torch::tanh(layers[static_cast<size_t>(i)](x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(ThreeLayers);

struct Ones : Microbatches {
  std::vector<TensorSpec> Specs(int64_t /*minibatch*/, int /*microbatch*/) override {
    return {{at::kFloat, {2, 4}, true}};
  }
  at::Tensor Input(int /*i*/, int64_t /*minibatch*/, int /*microbatch*/) override {
    return at::ones({2, 4});
  }
};

// Opens a session on 4 ranks: stage 0 on rank 0, stage 1 on ranks 1 and 2, stage 2 on rank 3. They
// compute on the CPU; `act` may say that they do not.
void WithSession(const std::function<void(Session&)>& act) {
  std::string folder = "/tmp/session_devices_XXXXXX";
  mkdtemp(folder.data());
  CompileOptions compile;
  compile.output = folder + "/net.pkg";
  ThreeLayers net;
  Model model = Trace(net, {torch::zeros({2, 4})}, {{"x"}});
  Compile(model, compile);
  const std::string conf = folder + "/conf.json";
  WriteFile(conf,
            R"({"module_to_stage_map": [0, 1, 2],
                "stage_to_rank_map": {"0": [0], "1": [1, 2], "2": [3]}})");
  RunThreads(4, [&](Transport& rank) {
    Session session(rank);
    session.job.path = "job";
    session.job.schedule = "gpipe";
    session.job.microbatches = 2;
    session.job.microbatch_size = 2;
    session.job.losses[0].kind = LossJob::kMse;
    session.job.optimizer.kind = OptimizerJob::kSgd;
    Ones source;
    SessionOptions options;
    options.package = compile.output;
    options.conf = conf;
    session.Open(options);
    session.Load({&source});
    act(session);
  });
  std::filesystem::remove_all(folder);
}

// Messages go from stage to stage, and the replicas add gradients.
TEST(SessionDevices, PeersOfMessagesAndOfSums) {
  WithSession([](Session& session) {
    const std::vector<VisibleDevices> visible(4);
    const Plan none;
    session.devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
    const RankPairs all = {{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 3}, {3, 1}, {2, 3}, {3, 2}};
    EXPECT_EQ(SessionPeers(session, none, visible), (DevicePeers{all, {{1, 2}}}));
    session.devices[3] = "cpu";
    const RankPairs others = {{0, 1}, {1, 0}, {0, 2}, {2, 0}};
    EXPECT_EQ(SessionPeers(session, none, visible), (DevicePeers{others, {{1, 2}}}));
    session.job.exact_reduce = true;
    EXPECT_EQ(SessionPeers(session, none, visible).sums.size(), 0);
    EXPECT_EQ(SessionPeers(session, none, visible).pairs.count({1, 2}), 1);
    session.job.exact_reduce = false;
    session.devices[2] = "cuda:1";  // NCCL refuses two ranks of a link on one device
    EXPECT_EQ(SessionPeers(session, none, visible).sums.size(), 0);
    session.options.links = DeviceLinks::kMpi;
    EXPECT_EQ(SessionPeers(session, none, visible), DevicePeers{});
  });
}

TEST(SessionDevices, NoPeersIfLaunchesBlock) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  WithSession([](Session& session) {
    session.devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
    const std::vector<VisibleDevices> visible(4);
    EXPECT_EQ(SessionPeers(session, {}, visible), DevicePeers{});
    session.options.links = DeviceLinks::kNccl;
    EXPECT_THROW(SessionPeers(session, {}, visible), Error);
    session.devices = {"cuda:0", "cpu", "cpu", "cpu"};
    EXPECT_EQ(SessionPeers(session, {}, visible), DevicePeers{}) << "nothing travels over NCCL";
  });
  unsetenv("CUDA_LAUNCH_BLOCKING");
}

// A sum needs two connections, which messages of the same replicas have anyway.
TEST(SessionDevices, ASumGivesWayWhereConnectionsAreFew) {
  for (const char* connections : {"13", "12"}) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    WithSession([&](Session& session) {
      session.devices = {"cuda:0", "cuda:1", "cuda:2", "cpu"};
      session.job.merge_buffers = true;
      const DevicePeers peers = SessionPeers(session, {}, std::vector<VisibleDevices>(4));
      EXPECT_EQ(peers.pairs.count({1, 2}), 1);
      EXPECT_EQ(peers.sums.count({1, 2}), connections == std::string("13"));
    });
  }
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

TEST(SessionDevices, RefusesCopiesOfWeightsThatWouldDriftApart) {
  WithSession([](Session& session) {
    session.devices = {"cpu", "cuda:1", "cuda:2", "cpu"};
    CheckCopiesOnDevices(session);
    session.devices = {"cuda:0", "cuda:1", "cpu", "cuda:3"};
    EXPECT_EQ(ErrorOf([&] { CheckCopiesOnDevices(session); }),
              "devices: stage 1 on rank 1 (cuda:1) and stage 1 on rank 2 (cpu) hold copies of the "
              "same weights, which would drift apart: their devices round differently\n"
              "  give these ranks devices of one type (rank_to_device_map of the conf)");
  });
}

}  // namespace
}  // namespace pipewright
