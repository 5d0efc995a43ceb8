// Measures the memory that a boundary between two modules of a stage costs.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/manifest.h"
#include "formats/weights/safetensors.h"
#include "runtime/session.h"
#include "runtime/transport/thread_transport.h"

namespace pipewright {
namespace {

constexpr int kOperations = 4;
constexpr int64_t kRows = 256, kColumns = 64, kActivation = 4 * kRows * kColumns;  // bytes

// Counts all allocated bytes, even if they are freed meanwhile.
struct Allocated : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    total += std::max<int64_t>(bytes, 0);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t total = 0;
};

// Makes a package that multiplies x by a weight kOperations times, in `modules` modules of one
// stage.
std::string Package(int modules) {
  const std::string folder = testing::TempDir() + "/boundary" + std::to_string(modules) + ".pkg";
  for (const char* part : {"/modules", "/weights", "/conf"})
    std::filesystem::create_directories(folder + part);
  const std::vector<float> ones(kColumns, 1);
  const char* data = reinterpret_cast<const char*>(ones.data());
  auto value = [](int id) { return "v" + std::to_string(id); };
  Manifest manifest;
  manifest.values = {{value(0), ValueKind::kTensor, "float32", {"256", "64"}, false, -1, {0}, {}}};
  manifest.inputs = {0}, manifest.outputs = {modules};
  std::string stages;
  for (int m = 0; m < modules; ++m) {
    const std::string name = "module" + std::to_string(m), number = std::to_string(m);
    std::string code = "class Module" + number + "(Module):\n  __parameters__ = [", body, declared;
    std::string last = value(m);
    ModuleInfo info{name, "modules/" + name + ".py", "weights/" + name + ".safetensors", "", {}, {m},
                    {m + 1}, {}};
    std::vector<TensorToWrite> weights;
    for (int i = 0; i < kOperations / modules; ++i) {
      const std::string weight = "w" + std::to_string(m * kOperations / modules + i);
      code += "\"" + weight + "\", ";
      declared += "  " + weight + " : Tensor\n";
      const std::string next = i + 1 < kOperations / modules ? "t" + std::to_string(i) : value(m + 1);
      body += "    " + weight + " = self." + weight + "\n    " + next + " = torch.mul(" + last +
              ", " + weight + ")\n";
      last = next;
      info.held.push_back({weight, WeightKind::kParameter, "float32", {kColumns}, true, true});
      weights.push_back({weight, "F32", {kColumns}, {data, 4 * ones.size()}});
    }
    code += "]\n  __buffers__ = []\n  training : bool\n" + declared +
            "  def forward(self: __torch__.Module" + number + ",\n    " + value(m) +
            ": Tensor) -> Tensor:\n" + body + "    return " + last + "\n";
    info.code_hash = HexHash(code);
    WriteFile(folder + "/" + info.code, code);
    WriteSafetensors(folder + "/" + info.weights, weights);
    manifest.modules.push_back(info);
    manifest.values.push_back(
        {value(m + 1), ValueKind::kTensor, "float32", {"256", "64"}, true, m, {}, {}});
    if (m + 1 < modules) manifest.values.back().consumers = {m + 1};
    stages += m > 0 ? ", 0" : "0";
  }
  WriteFile(folder + "/manifest.json", WriteManifest(manifest));
  WriteFile(folder + "/conf/mp_conf.json",
            "{\"module_to_stage_map\": [" + stages + "], \"stage_to_rank_map\": {\"0\": [0]}}\n");
  return folder;
}

struct Ones : Microbatches {
  std::vector<TensorSpec> Specs(int64_t /*minibatch*/, int /*microbatch*/) override {
    return {{at::kFloat, {kRows, kColumns}, true}};
  }
  at::Tensor Input(int /*i*/, int64_t /*minibatch*/, int /*microbatch*/) override { return ones; }
  const at::Tensor ones = at::ones({kRows, kColumns});
};

// Returns the bytes that a step of one microbatch allocates when modules run with `body`.
int64_t AllocatedInAStep(int modules, BodyChoice body) {
  int64_t bytes = 0;
  RunThreads(1, [&](Transport& rank) {
    Session session(rank);
    session.job.path = "job";
    session.job.microbatches = 1;
    session.job.microbatch_size = kRows;
    session.job.losses[0].kind = LossJob::kMse;
    session.job.optimizer.kind = OptimizerJob::kSgd;
    session.job.body = body;
    Ones source;
    SessionOptions options;
    options.package = Package(modules);
    session.Open(options);
    session.Load({&source});
    session.Start();
    int64_t step = 0;
    while (step < 10) session.Step(source, step++);  // lists are recorded meanwhile
    auto allocated = std::make_shared<Allocated>();
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocated);
    session.Step(source, step);
    bytes = allocated->total;
  });
  return bytes;
}

TEST(Boundary, CopiesNothing) {
  for (BodyChoice body : {BodyChoice::kAutograd, BodyChoice::kLists}) {
    const int64_t one = AllocatedInAStep(1, body), four = AllocatedInAStep(kOperations, body);
    EXPECT_GT(one, kOperations * kActivation);
    EXPECT_LT(std::abs(four - one), kActivation / 2) << one << " bytes in one module";
  }
}

}  // namespace
}  // namespace pipewright
