// Which jobs get one minibatch in a step.
#include "tune/job/minibatches.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "tests/temp_folder.h"
#include "tune/job/allowed.h"

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

// Returns why the minibatches stay, or "" if they are merged.
std::string WhyNot(Job job, const TuneRequest& request = {}) {
  const Job given = job;
  const std::string note = MergeMinibatches(request, job);
  EXPECT_EQ(job.accumulate * SamplesOf(job), given.accumulate * SamplesOf(given));
  if (job.accumulate == 1) return "";
  EXPECT_EQ(job.text, given.text);
  const std::string begin =
      "times are per minibatch, and the 3 that a step accumulates are not merged: ";
  EXPECT_TRUE(note.starts_with(begin)) << note;
  return note.substr(std::min(note.size(), begin.size()));
}

TEST(MergeMinibatches, KeepsMicrobatchesAndTheRest) {
  Job job = JobWith(24, {{"schedule", "zbv"}});
  const std::string note = MergeMinibatches({}, job);
  Json wanted = kJob;
  wanted.erase("accumulate");
  wanted["microbatches"] = 6, wanted["schedule"] = "zbv";
  EXPECT_EQ(Json::parse(job.text), wanted);
  EXPECT_EQ(job.accumulate, 1);
  EXPECT_EQ(job.microbatches, 6);
  EXPECT_EQ(job.microbatch_size, 2);
  EXPECT_EQ(job.data.tokens, JobWith(24).data.tokens);
  EXPECT_EQ(note,
            "the 3 minibatches of 4 samples in a step are merged into one of 12, except in the run "
            "as given");

  Json sized = kJob;
  sized.erase("microbatch_size");
  sized["minibatch_size"] = 4;
  WriteFile(TempPath("job.json"), sized.dump());
  job = ReadJob(TempPath("job.json"));
  MergeMinibatches({}, job);
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
                .find("the number of samples in \"data\" is not known: "),
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
  for (const Json& order :
       {Json{{"plan", "plan.csv"}}, Json{{"schedule", "zb-auto"}}, Json{{"schedule", "pipedream"}}})
    EXPECT_EQ(WhyNot(JobWith(24, order)), "the job's plan, costs or schedule order a single one")
        << order;
  EXPECT_EQ(WhyNot(JobWith(3 * 2800, {{"microbatches", 1400}})),
            "together, they have more than 4096 microbatches");
  TuneRequest exact;
  exact.exact = true;
  EXPECT_EQ(WhyNot(JobWith(24), exact), "--exact keeps them");
  Json uneven = kJob;
  uneven.erase("microbatch_size");
  uneven["minibatch_size"] = 5;
  JobWith(30);
  WriteFile(TempPath("job.json"), uneven.dump());
  EXPECT_EQ(WhyNot(ReadJob(TempPath("job.json"))), "their microbatches differ in size");
}

}  // namespace
}  // namespace pipewright
