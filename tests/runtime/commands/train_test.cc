// Trains a small package: how a run stops, what it resumes from, and what it keeps.
#include "runtime/commands/train.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "tests/environment.h"
#include "tests/runtime/small_package.h"

static std::atomic<int> syncs{0};  // calls of fdatasync

// Takes the place of the C library's.
extern "C" int fdatasync(int file) {
  ++syncs;
  return static_cast<int>(syscall(SYS_fdatasync, file));
}

namespace pipewright {
namespace {

namespace fs = std::filesystem;

// A job with these settings besides its data, loss and optimizer.
RunOptions SmallRun(const std::string& settings) {
  const at::Tensor x = at::arange(36, at::kFloat).view({12, 3}).div(16), t = at::ones({12, 3});
  const auto bytes = [](const at::Tensor& tensor) {
    return std::string_view(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  };
  WriteSafetensors(TempPath("rows.safetensors"),
                   {{"x", "F32", {12, 3}, bytes(x)}, {"t", "F32", {12, 3}, bytes(t)}});
  RunOptions run;
  run.package = SmallPackage("train.pkg");
  run.job = TempPath("train.json");
  WriteFile(run.job,
            R"({"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "t"},
 "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1}, "microbatches": 2, "microbatch_size": 2,
 "body": "autograd", )" +
                settings + "}");
  return run;
}

struct Said {
  std::string out, err, error;
};

// Trains on two ranks. `stops`: the run is asked to stop from the beginning.
Said Trained(const RunOptions& run, bool stops = false) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  StatusFile status("", 0);
  if (stops) status.RequestStop();
  Said said;
  try {
    RunThreads(2, [&](Transport& transport) {
      if (transport.rank() == 0) transport.SetStatus(status);
      Train(run, transport);
    });
  } catch (const std::exception& e) {
    said.error = e.what();
  }
  said.out = testing::internal::GetCapturedStdout();
  said.err = testing::internal::GetCapturedStderr();
  return said;
}

// Asked before the first step, two ranks stop after the second.
TEST(Train, IsNotStoppedOnceAllStepsAreDone) {
  for (const int steps : {2, 3}) {
    const std::string number = std::to_string(steps), folder = TempPath("stopped-" + number);
    RunOptions run = SmallRun("\"steps\": " + number + ", \"checkpoint\": {\"to\": \"" + folder +
                              "\", \"every\": 100}");
    run.save = TempPath("stopped-" + number + ".safetensors");
    const Said said = Trained(run, true);
    EXPECT_EQ(said.error, "");
    EXPECT_EQ(said.out.find("stopped after step 2, as asked") != std::string::npos, steps == 3)
        << said.out;
    EXPECT_EQ(fs::exists(run.save), steps == 2) << said.out;
    EXPECT_TRUE(fs::exists(folder + "/step-00000002/checkpoint.json")) << said.out;
  }
}

TEST(Train, NamesACheckpointOfALaterStepThatItDoesNotUse) {
  const std::string folder = TempPath("later");
  RunOptions run = SmallRun("\"steps\": 3, \"checkpoint\": {\"to\": \"" + folder +
                            "\", \"every\": 1, \"keep\": 0}");
  run.save = TempPath("later.safetensors");
  EXPECT_EQ(Trained(run).error, "");
  // The user has gone back to a checkpoint that turns out to be damaged.
  WriteFile(folder + "/latest", "step-00000002\n");
  WriteFile(folder + "/step-00000002/module0.safetensors", "damaged");
  run.resume = true;
  const Said said = Trained(run);
  EXPECT_EQ(said.error, "");
  EXPECT_NE(said.out.find("resumed from " + folder + "/step-00000001\n"), std::string::npos)
      << said.out << said.err;
  EXPECT_NE(said.err.find(folder + "/latest names " + folder + "/step-00000002, and " + folder +
                          "/step-00000003 is of a later step"),
            std::string::npos)
      << said.err;
}

TEST(Train, MetricsAreOnTheDiskBeforeTheirCheckpointIsComplete) {
  const std::string metrics = TempPath("metrics.jsonl");
  auto synced = [&](const std::string& settings) {
    RunOptions run = SmallRun("\"steps\": 3" + settings);
    run.save = TempPath("synced.safetensors");
    run.metrics = metrics;
    const int before = syncs;
    EXPECT_EQ(Trained(run).error, "");
    return syncs - before;
  };
  EXPECT_EQ(synced(""), 0);
  EXPECT_EQ(synced(", \"checkpoint\": {\"to\": \"" + TempPath("synced") + "\", \"every\": 2}"), 2);
}

TEST(Train, SavesTheWeightsElsewhereThoughTmpdirIsNoFolder) {
  RunOptions run = SmallRun("\"steps\": 1");
  run.save = "/dev/full";
  const std::string file = TempPath("a-file");
  WriteFile(file, "");
  const Environment wrong(Environment::Variables{{"TMPDIR", file.c_str()}});
  const std::string said = Trained(run).error;
  const std::string begins = "the weights were saved in ";
  const size_t at = said.find(begins + "/dev/shm/pipewright-weights-");
  ASSERT_NE(at, std::string::npos) << said;
  const size_t begin = at + begins.size();
  const fs::path saved = said.substr(begin, said.find(" instead", begin) - begin);
  EXPECT_TRUE(fs::exists(saved)) << said;
  fs::remove_all(saved.parent_path());
}

}  // namespace
}  // namespace pipewright
