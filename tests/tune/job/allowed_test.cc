// What a job lets tune change.
#include "tune/job/allowed.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"
#include "tune/job/own_run.h"

namespace pipewright {
namespace {

// One input whose first dimension is `batch`: a number, or a symbol from 2 to 64.
Manifest Model(const std::string& batch) {
  Manifest manifest;
  ValueInfo value;
  value.name = "x";
  value.shape = {batch, "6"};
  manifest.values = {value};
  manifest.inputs = {0};
  manifest.symbols["s0"] = {2, 64};
  return manifest;
}

Job JobOf(int microbatches, int64_t size) {
  Job job;
  job.microbatches = microbatches, job.microbatch_size = size;
  return job;
}

std::set<int64_t> Sizes(const TuneRequest& request, const std::string& batch, const Job& job,
                        const std::vector<WrittenBuffer>& written = {}) {
  std::vector<std::string> notes;
  const std::set<int64_t> sizes = MicrobatchSizes(request, Model(batch), written, job, notes);
  EXPECT_EQ(notes.empty(), sizes.size() > 1);
  return sizes;
}

TEST(TuneAllowed, SizesOfMicrobatches) {
  const TuneRequest request;
  EXPECT_EQ(SamplesOf(JobOf(4, 3)), 12);
  EXPECT_EQ(Sizes(request, "s0", JobOf(4, 3)), (std::set<int64_t>{2, 3, 4, 6, 12}));
  EXPECT_EQ(Sizes(request, "s0", JobOf(32, 3)), (std::set<int64_t>{2, 3, 4, 8, 16, 32, 48}));
  const std::set<int64_t> many = Sizes(request, "s0", JobOf(10000, 4));
  EXPECT_EQ(*many.begin(), 4) << "the job's own";
  EXPECT_GE(*std::next(many.begin()) * kMostMicrobatches, 40000);
  TuneRequest minibatches;
  minibatches.most_samples = 6;
  EXPECT_EQ(Sizes(minibatches, "s0", JobOf(8, 3)), (std::set<int64_t>{2, 3, 4, 6}));
  TuneRequest exact;
  exact.exact = true;
  EXPECT_EQ(Sizes(exact, "s0", JobOf(4, 3)), (std::set<int64_t>{3}));
  EXPECT_EQ(Sizes(request, "s0", JobOf(4, 3), {{"mean", true}}), (std::set<int64_t>{3}));
  TuneRequest change;
  change.change_microbatch = true;
  EXPECT_EQ(Sizes(change, "s0", JobOf(1, 4), {{"mean", true}}), (std::set<int64_t>{2, 4}));
  Job computes = JobOf(4, 3);
  computes.losses[0].kind = LossJob::kOutput;
  EXPECT_EQ(Sizes(request, "s0", computes), (std::set<int64_t>{3}));
  Job partial = JobOf(4, 3), padded = JobOf(4, 3);
  partial.partial = true;
  padded.data.length = "length";
  EXPECT_EQ(Sizes(request, "s0", partial), (std::set<int64_t>{3}));
  EXPECT_EQ(Sizes(request, "s0", padded), (std::set<int64_t>{3}));
}

TEST(TuneAllowed, AModelOfAFixedSize) {
  EXPECT_EQ(Sizes({}, "4", JobOf(3, 4)), std::set<int64_t>{4});
  std::vector<std::string> notes;
  Job job = JobOf(2, 8);
  job.path = "job.json";
  EXPECT_EQ(ErrorOf([&] { MicrobatchSizes({}, Model("4"), {}, job, notes); }),
            "job.json: its microbatches have 8 samples, and the model was exported for 4\n  export "
            "it with a dynamic dimension, or give microbatches of that size");
}

// A model without running statistics writes to no buffer.
TEST(TuneAllowed, BatchNormalizationInTraining) {
  const auto sizes = [](const std::string& call) {
    Manifest manifest = Model("s0");
    manifest.modules.resize(1);
    manifest.modules[0].code = "code.py";
    std::ofstream(TempPath("code.py")) << "x = torch.relu(x)\nx = torch." << call << "\n";
    TuneRequest request;
    request.package = std::filesystem::path(TempPath("code.py")).parent_path();
    std::vector<std::string> notes;
    return MicrobatchSizes(request, manifest, {}, JobOf(4, 3), notes).size();
  };
  EXPECT_GT(sizes("relu(x)"), 1u);
  EXPECT_EQ(sizes("batch_norm(x, w, b, None, None, True, 0.1, 1e-05, True)"), 1u);
  EXPECT_EQ(sizes("native_batch_norm(x, w, b, None, None, True, 0.1, 1e-05)"), 1u);
  EXPECT_EQ(sizes("_native_batch_norm_legit(x, w, b, True, 0.1, 1e-05)"), 1u);
  EXPECT_EQ(sizes("batch_norm(x, w, b, self.mean, self.var, training, 0.1, 1e-05, True)"), 1u);
  EXPECT_GT(sizes("batch_norm(x, w, b, self.mean, self.var, False, 0.1, 1e-05, True)"), 1u);
  EXPECT_GT(sizes("_native_batch_norm_legit_no_training(x, w, b, mean, var, 0.1, 1e-05)"), 1u);
}

TEST(TuneAllowed, Replicas) {
  TuneProblem problem;
  std::vector<std::string> notes;
  LimitCandidates({}, {}, JobOf(2, 1), problem, notes);
  EXPECT_TRUE(problem.replicas);
  Job merges = JobOf(2, 1);
  merges.merge_buffers = true;
  LimitCandidates({}, {{"mean", true}}, merges, problem, notes);
  EXPECT_TRUE(problem.replicas);
  EXPECT_TRUE(notes.empty());
  LimitCandidates({}, {{"mean", false}}, merges, problem, notes);
  EXPECT_FALSE(problem.replicas);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("forward writes to mean"), std::string::npos) << notes[0];
}

TEST(TuneAllowed, RefusesStepsThatOverlap) {
  Job job = JobOf(2, 1);
  job.schedule = "pipedream";
  TuneProblem problem;
  std::vector<std::string> notes;
  EXPECT_EQ(ErrorOf([&] { LimitCandidates({}, {}, job, problem, notes); }),
            job.path +
                ": the steps of pipedream overlap, and no other schedule has its results\n  "
                "name a schedule without such steps, such as 1f1b");
}

TEST(TuneAllowed, TheOwnRunNeedsAPackage) {
  TuneRequest request;
  request.package = "/no/package", request.scratch = "/no", request.ranks = 2;
  EXPECT_THROW(OwnRun(request, JobOf(2, 1), Model("s0")), Error);
}

}  // namespace
}  // namespace pipewright
