// Makes a package of two modules, y = x * scale and z = y + shift, and data in memory to train it
// on.
#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "runtime/session.h"
#include "runtime/transport/thread_transport.h"
#include "tests/temp_folder.h"

namespace pipewright {

inline constexpr char kScaleCode[] = R"(class Module0(Module):
  __parameters__ = ["scale", ]
  __buffers__ = []
  training : bool
  scale : Tensor
  def forward(self: __torch__.Module0,
    x: Tensor) -> Tensor:
    scale = self.scale
    return torch.mul(x, scale)
)";

inline constexpr char kShiftCode[] = R"(class Module1(Module):
  __parameters__ = ["shift", ]
  __buffers__ = []
  training : bool
  shift : Tensor
  def forward(self: __torch__.Module1,
    y: Tensor) -> Tensor:
    shift = self.shift
    return torch.add(y, shift)
)";

inline Manifest SmallManifest() {
  Manifest m;
  m.source = "small.pt2";
  m.symbols["s0"] = {1, 64};
  m.values = {{"x", ValueKind::kTensor, "float32", {"s0", "3"}, false, -1, {0}, {}},
              {"y", ValueKind::kTensor, "float32", {"s0", "3"}, true, 0, {1}, {}},
              {"z", ValueKind::kTensor, "float32", {"s0", "3"}, true, 1, {}, {}}};
  m.inputs = {0};
  m.outputs = {2};
  m.modules = {{"module0",
                "modules/module0.py",
                "weights/module0.safetensors",
                HexHash(kScaleCode),
                {},
                {0},
                {1},
                {{"scale", WeightKind::kParameter, "float32", {3}, true, true, 0}}},
               {"module1",
                "modules/module1.py",
                "weights/module1.safetensors",
                HexHash(kShiftCode),
                {},
                {1},
                {2},
                {{"shift", WeightKind::kParameter, "float32", {3}, true, true, 1}}}};
  return m;
}

// Writes the package with scale 1, 2, 3 and this shift. `ranks`: the rank of each module's stage.
inline std::string SmallPackage(const std::string& name, const std::vector<int>& ranks = {0, 1},
                                std::vector<float> shift = {0, 0, 0}) {
  const std::string folder = TempPath(name);
  for (const char* part : {"modules", "weights", "conf"})
    std::filesystem::create_directories(folder + "/" + part);
  WriteFile(folder + "/modules/module0.py", kScaleCode);
  WriteFile(folder + "/modules/module1.py", kShiftCode);
  auto write = [&](const std::string& file, const std::string& weight, std::vector<float> values) {
    WriteSafetensors(folder + "/weights/" + file,
                     {{weight, "F32", {3}, {reinterpret_cast<const char*>(values.data()), 12}}});
  };
  write("module0.safetensors", "scale", {1, 2, 3});
  write("module1.safetensors", "shift", shift);
  WriteFile(folder + "/manifest.json", WriteManifest(SmallManifest()));
  Conf conf;
  conf.module_to_stage = {0, 1};
  for (int rank : ranks) conf.stage_to_ranks.push_back({rank});
  WriteFile(folder + "/conf/mp_conf.json", WriteConf(conf));
  return folder;
}

// Mean squared error, SGD with momentum, two microbatches of two samples.
inline Job SmallJob() {
  Job job;
  job.path = "job.json";
  job.text = "{}";
  job.losses[0].kind = LossJob::kMse;
  job.optimizer.lr = 0.25;
  job.optimizer.momentum = 0.5;
  job.microbatches = 2;
  job.microbatch_size = 2;
  job.minibatch_size = 4;
  job.body = BodyChoice::kAutograd;
  return job;
}

// Provides one minibatch of inputs and targets, [4, 3] each, in every step.
struct SmallData : Microbatches {
  at::Tensor x = at::arange(12, at::kFloat).view({4, 3}).div(8);
  at::Tensor target = at::ones({4, 3});
  std::string spoiled;  // what NotFinite says

  std::vector<TensorSpec> Specs(int64_t, int) override { return {{at::kFloat, {2, 3}, true}}; }
  at::Tensor Input(int i, int64_t, int microbatch) override {
    return (i < 0 ? target : x).narrow(0, 2 * microbatch, 2);
  }
  TensorSpec Target(int, int64_t, int) override { return {at::kFloat, {2, 3}, true}; }
  std::string NotFinite(int64_t, int) override { return spoiled; }
};

// Calls `body` on each of the ranks with a session that is ready to step.
inline void WithSession(const std::string& package, int ranks, const Job& job, SmallData& data,
                        const std::function<void(Session&)>& body, bool resumes = false) {
  RunThreads(ranks, [&](Transport& transport) {
    Session session(transport);
    session.job = job;
    SessionOptions options;
    options.package = package;
    options.resumes = resumes;
    options.keep_gradients = true;
    session.Open(options);
    session.Load({&data});
    if (!resumes) session.Start();
    body(session);
  });
}

// Trains the same with autograd on whole minibatches, without a pipeline.
struct SmallReference {
  at::Tensor scale = at::tensor({1.f, 2.f, 3.f}), shift = at::zeros({3});
  at::Tensor scale_gradient, shift_gradient;
  at::Tensor scale_momentum, shift_momentum;

  // Returns the losses of the microbatches before the step.
  std::vector<double> Step(const SmallData& data, const Job& job) {
    const at::Tensor off = data.x * scale + shift - data.target;
    scale_gradient = (2 * off * data.x).sum(0) / 12, shift_gradient = (2 * off).sum(0) / 12;
    auto update = [&](at::Tensor& weight, at::Tensor& momentum, const at::Tensor& gradient) {
      momentum = momentum.defined() ? momentum * job.optimizer.momentum + gradient : gradient;
      weight = weight - momentum * job.optimizer.lr;
    };
    update(scale, scale_momentum, scale_gradient);
    update(shift, shift_momentum, shift_gradient);
    std::vector<double> losses;
    for (int m : {0, 1}) losses.push_back(off.narrow(0, 2 * m, 2).square().mean().item<double>());
    return losses;
  }
};

inline bool Close(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 1e-5, 1e-6);
}

}  // namespace pipewright
