// Which jobs get one minibatch in a step.
#include "tune/minibatches.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"
#include "tune/allowed.h"

namespace pipewright {
namespace {

// A step has 3 minibatches of 2 microbatches with 2 samples.
const Json kJob = Json::parse(R"({
  "data": {"tokens": "text.bin", "dtype": "u8", "sequence_length": 4}, "loss": "cross_entropy",
  "optimizer": {"type": "sgd", "lr": 0.1}, "microbatches": 2, "microbatch_size": 2, "accumulate": 3,
  "steps": 9, "recompute": {"stages": [0]}})");

// Reads a job with data of `samples`.
Job JobWith(int samples, const Json& changes = Json::object()) {
  WriteFile(TempPath("text.bin"), std::string(static_cast<size_t>(4 * samples + 1), 'a'));
  Json text = kJob;
  text.update(changes);
  WriteFile(TempPath("job.json"), text.dump());
  return ReadJob(TempPath("job.json"));
}

// Returns why the minibatches cannot be merged, or "" if they are.
std::string WhyNot(Job job) {
  const Job given = job;
  const std::string error = ErrorOf([&] { MergeMinibatches({}, {}, job); });
  EXPECT_EQ(job.accumulate * SamplesOf(job), given.accumulate * SamplesOf(given));
  if (error.empty()) return "";
  EXPECT_EQ(job.text, given.text);
  const std::string begin = "cannot be merged without changing results: ";
  const size_t at = error.find(begin), end = error.find("\n");
  return at == std::string::npos ? error : error.substr(at + begin.size(), end - at - begin.size());
}

TEST(MergeMinibatches, KeepsMicrobatchesAndTheRest) {
  Job job = JobWith(24, {{"schedule", "zbv"}});
  const std::string note = MergeMinibatches({}, {}, job);
  Json wanted = kJob;
  wanted.erase("accumulate");
  wanted["microbatches"] = 6, wanted["schedule"] = "zbv";
  EXPECT_EQ(Json::parse(job.text), wanted);
  EXPECT_EQ(job.accumulate, 1);
  EXPECT_EQ(job.microbatches, 6);
  EXPECT_EQ(job.microbatch_size, 2);
  EXPECT_EQ(job.data.tokens, JobWith(24).data.tokens);
  EXPECT_EQ(note,
            "the 3 minibatches of 4 samples that a step accumulates are merged into one of 12 in "
            "all candidates, including the job as given");
  EXPECT_EQ(MergeMinibatches({}, {}, job),
            "--merge-minibatches changes nothing: a step has one minibatch");

  Json sized = kJob;
  sized.erase("microbatch_size");
  sized["minibatch_size"] = 4;
  WriteFile(TempPath("job.json"), sized.dump());
  job = ReadJob(TempPath("job.json"));
  MergeMinibatches({}, {}, job);
  EXPECT_EQ(job.minibatch_size, 12);
  EXPECT_EQ(job.microbatch_size, 2);
}

TEST(MergeMinibatches, OnlyIfEpochsEndWhereStepsDo) {
  EXPECT_EQ(WhyNot(JobWith(12)), "");
  EXPECT_EQ(WhyNot(JobWith(27)), "") << "three samples are left out of each epoch either way";
  for (int samples : {3, 4, 11, 16, 20, 28})
    EXPECT_EQ(WhyNot(JobWith(samples)), "an epoch of \"data\" has " +
                                            Counted(samples / 4, "minibatch") +
                                            ", and should have 3 or a multiple of 3");
  std::filesystem::remove(TempPath("text.bin"));
  EXPECT_NE(WhyNot(ReadJob(TempPath("job.json")))
                .find("job.json: \"data\": cannot be read, and --merge-minibatches needs "),
            std::string::npos);
}

TEST(MergeMinibatches, OnlyIfNothingElseCountsThem) {
  const Json other = {{"tokens", "other.bin"}, {"dtype", "u8"}, {"sequence_length", 4}};
  const auto validates = [&](int samples, const char* key) {
    WriteFile(TempPath("other.bin"), std::string(static_cast<size_t>(4 * samples + 1), 'a'));
    Json validation = {{"data", other}, {"every", 2}};
    if (key) validation[key] = 1;
    return WhyNot(JobWith(24, {{"validation", validation}}));
  };
  EXPECT_EQ(validates(12, nullptr), "");
  EXPECT_EQ(validates(16, nullptr),
            "an epoch of the validation's \"data\" has 4 minibatches, and should have 3 or a "
            "multiple of 3");
  EXPECT_EQ(validates(12, "steps"), "\"steps\" of the validation are minibatches");
  EXPECT_EQ(WhyNot(JobWith(24, {{"partial", true}})),
            "with \"partial\", the last step of an epoch depends on them");
  EXPECT_EQ(WhyNot(JobWith(24, {{"plan", "plan.csv"}})),
            "the job's plan or costs are for a single minibatch");
  EXPECT_EQ(WhyNot(JobWith(24, {{"schedule", "pipedream"}})),
            TempPath("job.json") +
                ": schedule: pipedream does not support \"accumulate\"\n"
                "  use more microbatches, or another schedule");
  Json uneven = kJob;
  uneven.erase("microbatch_size");
  uneven["minibatch_size"] = 5;
  JobWith(30);
  WriteFile(TempPath("job.json"), uneven.dump());
  EXPECT_EQ(WhyNot(ReadJob(TempPath("job.json"))), "their microbatches differ in size");
}

TEST(MergeMinibatches, IsSuggestedUnlessExactOrInARun) {
  const Job job = JobWith(24);
  const std::string note = "times are per minibatch: a step accumulates 3";
  TuneRequest request;
  EXPECT_EQ(MinibatchesStay(request, job),
            note +
                " (--merge-minibatches merges them into one, which may be faster, and take "
                "more memory)");
  request.exact = true;
  EXPECT_EQ(MinibatchesStay(request, job), note);
  request.exact = false, request.options = "--tune-";
  EXPECT_EQ(MinibatchesStay(request, job), note);
}

}  // namespace
}  // namespace pipewright
