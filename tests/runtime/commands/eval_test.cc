// Evaluates a small package, and compares its loss with ATen's.
#include "runtime/commands/eval.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

// Nine samples: two minibatches of four, and one left over.
at::Tensor Rows() { return at::arange(27, at::kFloat).view({9, 3}).div(16); }

RunOptions SmallRun() {
  const at::Tensor x = Rows(), t = at::ones({9, 3});
  const auto bytes = [](const at::Tensor& tensor) {
    return std::string_view(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  };
  WriteSafetensors(TempPath("eval.safetensors"),
                   {{"x", "F32", {9, 3}, bytes(x)}, {"t", "F32", {9, 3}, bytes(t)}});
  RunOptions run;
  run.package = SmallPackage("eval.pkg");
  run.job = TempPath("eval.json");
  WriteFile(run.job,
            R"({"data": {"tensors": "eval.safetensors", "inputs": {"x": "x"}, "target": "t",
 "shuffle": false}, "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1}, "microbatches": 2,
 "microbatch_size": 2, "metrics": "training.jsonl"})");
  return run;
}

// Returns what rank 0 prints.
std::string Evaluated(const RunOptions& run) {
  testing::internal::CaptureStdout();
  RunThreads(2, [&](Transport& transport) { Evaluate(run, transport); });
  return testing::internal::GetCapturedStdout();
}

double Expected(int64_t samples) {
  const at::Tensor z = Rows().narrow(0, 0, samples) * at::tensor({1.f, 2.f, 3.f});
  return (z - 1).pow(2).mean().item<double>();
}

TEST(Evaluate, TheLossIsThatOfTheWholeData) {
  RunOptions run = SmallRun();
  run.metrics = TempPath("eval_metrics.json");
  const std::string printed = Evaluated(run);
  char loss[40];
  std::snprintf(loss, sizeof loss, "loss %.6f over 8 of 9 samples, ", Expected(8));
  EXPECT_EQ(printed.substr(0, std::strlen(loss)), loss) << printed;
  EXPECT_NE(printed.find("the rest do not fill a minibatch"), std::string::npos);
  const Json json = ReadJson(run.metrics);
  EXPECT_NEAR(json.at("loss").get<double>(), Expected(8), 1e-6);
  EXPECT_EQ(json.at("samples"), 8);
  EXPECT_FALSE(std::filesystem::exists(TempPath("training.jsonl"))) << "it is for training";
}

TEST(Evaluate, StepsLimitIt) {
  RunOptions run = SmallRun();
  run.steps = 1;
  char loss[40];
  std::snprintf(loss, sizeof loss, "loss %.6f over 4 samples, ", Expected(4));
  EXPECT_EQ(Evaluated(run).substr(0, std::strlen(loss)), loss);
}

TEST(CheckEvaluate, FindsWhatEvaluateWouldAndWritesNothing) {
  RunOptions run = SmallRun();
  run.metrics = TempPath("unwritten.json");
  Job job;
  RunThreads(1, [&](Transport& transport) {
    RunOptions alone = run;
    alone.package = SmallPackage("eval1.pkg", {0, 0});
    EXPECT_EQ(CheckEvaluate(alone, transport, job), std::vector<std::string>());
  });
  EXPECT_EQ(job.microbatches, 2);
  EXPECT_FALSE(std::filesystem::exists(run.metrics));
  run.set = {"data.target=absent"};
  const std::string wrong =
      ErrorOf([&] { RunThreads(2, [&](Transport& transport) { Evaluate(run, transport); }); });
  EXPECT_NE(wrong.find("absent"), std::string::npos) << wrong;
  EXPECT_EQ(ErrorOf([&] {
              RunThreads(2, [&](Transport& transport) {
                Job mine;
                CheckEvaluate(run, transport, mine);
              });
            }),
            wrong);
}

}  // namespace
}  // namespace pipewright
