// Measures a small package on two ranks, and checks all that is written but the times.
#include "runtime/commands/bench.h"

#include <gtest/gtest.h>

#include <iostream>
#include <limits>
#include <sstream>

#include "base/json.h"
#include "runtime/module/messages.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

// Writes eight samples and a job of two microbatches. The job accumulates three minibatches, of
// which a measurement takes one.
std::string WriteJob(float target = 1) {
  const at::Tensor x = at::ones({8, 3}), t = at::full({8, 3}, target);
  auto bytes = [](const at::Tensor& rows) {
    return std::string_view(static_cast<const char*>(rows.data_ptr()), rows.nbytes());
  };
  WriteSafetensors(TempPath("rows.safetensors"),
                   {{"x", "F32", {8, 3}, bytes(x)}, {"t", "F32", {8, 3}, bytes(t)}});
  const std::string job = TempPath("job.json");
  WriteFile(job, R"({"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "t"},
 "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.5},
 "microbatches": 2, "microbatch_size": 2, "accumulate": 3})");
  return job;
}

// Returns what rank 0 prints, or the error.
std::string PrintedBy(const BenchOptions& options) {
  testing::internal::CaptureStdout();
  const std::string error =
      ErrorOf([&] { RunThreads(2, [&](Transport& transport) { Bench(options, transport); }); });
  const std::string printed = testing::internal::GetCapturedStdout();
  return error.empty() ? printed : error;
}

BenchOptions Options(const std::string& package, float target = 1) {
  BenchOptions options;
  options.package = SmallPackage(package);
  options.job = WriteJob(target);
  options.steps = 2;
  options.warmup = 1;
  return options;
}

TEST(Bench, CountsTheActionsOfEachStage) {
  BenchOptions options = Options("bench.pkg", std::numeric_limits<float>::quiet_NaN());
  options.json = true;
  options.costs = TempPath("costs.json");
  options.trace = TempPath("trace.json");
  const Json summary = Json::parse(PrintedBy(options));
  const int steps = summary["steps"];
  EXPECT_TRUE(steps >= 2 && steps <= 8 && steps % 2 == 0) << steps;  // more where times vary
  ASSERT_EQ(summary["ranks"].size(), 2u);
  ASSERT_EQ(summary["stages"].size(), 2u);
  for (const Json& stage : summary["stages"]) {
    const Json& actions = stage["actions"];
    std::vector<std::string> names;
    for (const auto& [name, timing] : actions.items()) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"F", "B", "STEP"}));
    EXPECT_EQ(actions["F"]["count"], 2 * steps);  // two microbatches
    EXPECT_EQ(actions["B"]["count"], 2 * steps);
    EXPECT_EQ(actions["STEP"]["count"], steps);
    for (const char* name : {"F", "I", "B", "W", "step"})
      EXPECT_GE(stage["costs"][name].get<double>(), 0) << name;
    EXPECT_GT(stage["costs"]["W"].get<double>(), 0);  // which the plan itself lacks
    EXPECT_GE(stage["costs"]["weights"].get<double>(), 12);
    EXPECT_EQ(stage["costs"]["recompute"]["time"], stage["costs"]["F"]);
  }

  // Three floats for each of two samples, and how they lie.
  const int64_t bytes = 24 + LayoutBytes(2);
  const Json costs = Json::parse(ReadFile(options.costs));
  EXPECT_EQ(costs["edges"],
            Json::parse("[{\"from\": 0, \"to\": 1, \"bytes\": " + std::to_string(bytes) +
                        ", \"back\": " + std::to_string(bytes) + "}]"));
  ASSERT_EQ(costs["stages"].size(), 2u);
  EXPECT_EQ(costs["stages"][0]["output"], bytes);
  EXPECT_EQ(costs["stages"][1]["output"], 0);
  for (int stage : {0, 1}) EXPECT_EQ(costs["stages"][stage], summary["stages"][stage]["costs"]);
  EXPECT_GT(costs["link"]["latency"].get<double>(), 0);

  // The trace has the first two steps that were measured.
  std::map<std::string, int> count;
  const Json trace = Json::parse(ReadFile(options.trace));
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X") ++count[event["name"].get<std::string>()];
  for (const char* name : {"0F0", "0F1", "1F0", "1B1", "0B0", "0STEP", "1STEP"})
    EXPECT_EQ(count[name], 2) << name;
}

TEST(Bench, ASplitBackwardIsMeasuredAsAWholeToo) {
  BenchOptions options = Options("split.pkg");
  options.json = true;
  options.schedule = "zb-h1";
  options.set = {"microbatches=4", "microbatch_size=1"};
  const Json summary = Json::parse(PrintedBy(options));
  const int steps = summary["steps"];
  for (const Json& stage : summary["stages"]) {
    EXPECT_FALSE(stage["actions"].contains("B"));
    EXPECT_EQ(stage["actions"]["I"]["count"], 4 * steps);
    EXPECT_EQ(stage["actions"]["W"]["count"], 4 * steps);
    EXPECT_GT(stage["costs"]["B"].get<double>(), 0);
  }
}

TEST(Bench, PrintsTablesForPeople) {
  const std::string printed = PrintedBy(Options("print.pkg"));
  EXPECT_EQ(printed.find("step "), 0u) << printed;
  EXPECT_NE(printed.find(" steps after 1 of warm-up\n"), std::string::npos) << printed;
  EXPECT_NE(printed.find("\nstage action        count    median       low      high ms\n    0 F "),
            std::string::npos)
      << printed;
  EXPECT_NE(printed.find("\ncosts of the stages, one microbatch\n"), std::string::npos) << printed;
}

TEST(Bench, RefusesWhatItCannotMeasure) {
  BenchOptions options = Options("refused.pkg");
  options.schedule = "pipedream";
  EXPECT_EQ(PrintedBy(options),
            "reading on every rank: schedule pipedream: its steps overlap, so none "
            "can be measured\n  `train` writes the seconds of each step to its "
            "metrics");
  options.schedule = "1f1c";
  EXPECT_EQ(
      PrintedBy(options).find("reading on every rank: --schedule: unknown schedule \"1f1c\" "), 0u)
      << PrintedBy(options);
  options.schedule.clear();
  options.costs = options.job;
  const std::string read = PrintedBy(options);
  EXPECT_EQ(read.find("opening outputs on rank 0: --costs: "), 0u) << read;
  options.costs = options.trace = TempPath("one.json");
  const std::string same = PrintedBy(options);
  EXPECT_EQ(same.find("opening outputs on every rank: --costs: "), 0u) << same;
  EXPECT_FALSE(std::filesystem::exists(TempPath("one.json")));
}

TEST(Bench, AnswersRequestsInstead) {
  BenchOptions options = Options("asked.pkg");
  options.on_request = true;
  options.costs = TempPath("unwritten.json");
  std::istringstream in("steps 3 each\n");
  std::streambuf* before = std::cin.rdbuf(in.rdbuf());
  const std::string printed = PrintedBy(options);
  std::cin.rdbuf(before);
  const Json answer = Json::parse(printed);
  EXPECT_EQ(answer["ranks"][0]["ends"].size(), 3u) << printed;
  EXPECT_EQ(answer["losses"].size(), 2u) << printed;  // those of one minibatch
  EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 1);
  EXPECT_FALSE(std::filesystem::exists(options.costs));
}

}  // namespace
}  // namespace pipewright
