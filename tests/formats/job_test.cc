#include "formats/job.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "tests/error_text.h"

namespace pipewright {

static std::string Write(const std::string& text) {
  std::string path = testing::TempDir() + "/job.json";
  WriteFile(path, text);
  return path;
}

// A whole job, with `change` before the closing brace of its object.
static std::string With(const std::string& change,
                        const std::string& optimizer = R"({"type": "sgd"})") {
  return R"({"data": {"tokens": "text.bin", "sequence_length": 8}, "loss": "cross_entropy",
 "optimizer": )" +
         optimizer + R"(, "microbatches": 4, "microbatch_size": 2)" + change + "}";
}

static std::string JobError(const std::string& text) {
  const std::string error = ErrorOf([&] { ReadJob(Write(text)); });
  return error.empty() ? "" : error.substr(error.find("job.json"));
}

TEST(Job, DefaultsAndPaths) {
  Job job = ReadJob(Write(With(R"(, "save": "out/w.safetensors")")));
  EXPECT_EQ(job.schedule, "1f1b");
  EXPECT_EQ(job.microbatches, 4);
  EXPECT_EQ(job.data.tokens,
            std::vector<std::string>{
                std::filesystem::path(testing::TempDir() + "/text.bin").lexically_normal()});
  EXPECT_EQ(job.optimizer.kind, OptimizerJob::kSgd);
  EXPECT_TRUE(job.stop_on_nan);
  EXPECT_FALSE(job.tf32);
  EXPECT_TRUE(ReadJob(Write(With(R"(, "tf32": true)"))).tf32);
}

TEST(Job, Comments) {
  Job job = ReadJob(Write("// a job\n" + With(R"(, /* where, "and" // when */ "save": "a//b/*c", // it goes
 "steps": 3 /**/)")));
  EXPECT_EQ(std::filesystem::path(job.save).filename(), "*c");
  EXPECT_EQ(job.steps, 3);
  // Positions are those of the file.
  EXPECT_TRUE(JobError("{\n/* first\n second */ x}").starts_with("job.json:3:12: not JSON: "));
  EXPECT_TRUE(JobError("{/* no end").starts_with("job.json:1:2: not JSON: "));
}

// Every reader of JSON files that people write accepts comments.
TEST(Job, CommentsForEveryReader) {
  EXPECT_EQ(ReadJson(Write("// a job\n{\"a\": /* one */ 1}"))["a"], 1);
}

TEST(Job, Changes) {
  const std::string path =
      Write(With(R"(, "loss_scale": 8)", R"({"type": "sgd", "lr": 0.5})"));
  auto changed = [&](std::vector<std::string> changes) { return ReadJob(path, changes); };
  EXPECT_EQ(changed({"optimizer.lr=0.25"}).optimizer.lr, 0.25);
  EXPECT_EQ(changed({"optimizer.type=adamw", "optimizer.betas=[0.5, 0.6]"}).optimizer.beta2, 0.6);
  EXPECT_EQ(changed({"checkpoint.to=saved", "checkpoint.every=5"}).checkpoint.every, 5);
  EXPECT_EQ(changed({"save=a=b"}).save, std::filesystem::path(path).parent_path() / "a=b");
  EXPECT_EQ(changed({"data.tokens=[\"a\", \"b\"]", "data.tokens.1=c"}).data.tokens[1],
            std::filesystem::path(path).parent_path() / "c");
  EXPECT_EQ(changed({"steps=7"}).steps, 7);
  // The job as it was run is kept with its checkpoints.
  EXPECT_NE(changed({"steps=7"}).text.find("\"steps\": 7"), std::string::npos);
  EXPECT_EQ(changed({}).text, ReadFile(path));
}

TEST(Job, ChangesThatAreRefused) {
  const std::string path = Write(With(R"(, "freeze": ["a", "b"])"));
  auto refused = [&](const std::string& change) {
    const std::string error = ErrorOf([&] { ReadJob(path, {change}); });
    return error.starts_with(path) ? error.substr(error.find("job.json")) : error;
  };
  EXPECT_EQ(refused("steps"),
            "--set steps: KEY=VALUE is expected, such as optimizer.lr=0.1");
  EXPECT_EQ(refused("=3"), "--set =3: KEY=VALUE is expected, such as optimizer.lr=0.1");
  EXPECT_EQ(refused("stepz=3"),
            "job.json with --set stepz=3: unknown key \"stepz\" (did you mean \"steps\"?)");
  EXPECT_EQ(refused("steps=many"),
            "job.json with --set steps=many: steps: a whole number is expected, not \"many\"");
  EXPECT_EQ(refused("microbatches.x=3"),
            "--set microbatches.x=3: \"microbatches\" is 4 and has no keys\n  give the whole value: "
            "--set 'microbatches={...}'");
  EXPECT_EQ(refused("freeze.2=c"),
            "--set freeze.2=c: \"freeze\" is a list of 2 entries, and \"2\" is none of them (they "
            "count from 0)");
  EXPECT_EQ(refused("freeze.last=c"),
            "--set freeze.last=c: \"freeze\" is a list of 2 entries, and \"last\" is none of them "
            "(they count from 0)");
}

TEST(Job, AdamW) {
  Job job = ReadJob(Write(With("", R"({"type": "adamw", "lr": 0.5, "betas": [0.8, 0.9]})")));
  EXPECT_EQ(job.optimizer.kind, OptimizerJob::kAdamW);
  EXPECT_EQ(job.optimizer.lr, 0.5);
  EXPECT_EQ(job.optimizer.beta2, 0.9);
  EXPECT_EQ(job.optimizer.weight_decay, 0.01);
}

TEST(Job, AScheduleOfTheRateIsAsLongAsTheJob) {
  auto length = [](const std::string& change, const std::string& rate) {
    const std::string sgd = R"({"type": "sgd", "lr_schedule": )" + rate + "}";
    return ReadJob(Write(With(change, sgd))).optimizer.rate.steps;
  };
  const std::string steps = R"(, "steps": 7)", open = R"({"type": "cosine"})";
  EXPECT_EQ(length(steps, R"({"type": "cosine", "steps": 9})"), 9);
  EXPECT_EQ(length(steps, open), 7);
  EXPECT_EQ(length("", open), 0);  // that of the run
}

TEST(Job, ScheduleIsANameOrAFile) {
  Job job = ReadJob(Write(With(R"(, "schedule": "zb-auto", "costs": "costs.json")")));
  EXPECT_EQ(job.plan, "");
  EXPECT_EQ(job.costs,
            std::filesystem::path(testing::TempDir() + "/costs.json").lexically_normal());
  job = ReadJob(Write(With(R"(, "schedule": "mine.csv")")));
  EXPECT_EQ(job.plan, std::filesystem::path(testing::TempDir() + "/mine.csv").lexically_normal());
  SetSchedule(job, "gpipe");
  EXPECT_EQ(job.plan, "");
  job = ReadJob(Write(With(R"(, "schedule": "zb-h1", "plan": "mine.txt")")));
  EXPECT_EQ(job.plan, std::filesystem::path(testing::TempDir() + "/mine.txt").lexically_normal());
  EXPECT_THROW(SetSchedule(job, "gpip"), Error);
}

TEST(Job, ReduceAndRecompute) {
  Job job = ReadJob(Write(With("")));
  EXPECT_FALSE(job.exact_reduce || job.recompute.all);
  job = ReadJob(Write(With(R"(, "reduce": "exact", "recompute": true)")));
  EXPECT_TRUE(job.exact_reduce && job.recompute.all);
  job = ReadJob(Write(With(R"(, "recompute": {"stages": [1], "modules": [0, 2]})")));
  EXPECT_EQ(job.recompute.stages, (std::vector<int>{1}));
  EXPECT_EQ(job.recompute.modules, (std::vector<int>{0, 2}));
}

TEST(Job, Errors) {
  struct Case {
    std::string text, expected;
  };
  const Case cases[] = {
      {With(R"(, "shedule": "gpipe")"),
       "job.json: unknown key \"shedule\" (did you mean \"schedule\"?)"},
      {With(R"(, "clip_norm": 1)"),
       "job.json: unknown key \"clip_norm\" (did you mean \"optimizer.clip_norm\"?)"},
      {With(R"(, "shuffle": false)"),
       "job.json: unknown key \"shuffle\" (did you mean \"data.shuffle\"?)"},
      {With(R"(, "steps": -1)"), "job.json: steps: -1 is out of range: at least 0"},
      {With(R"(, "steps": "many")"), "job.json: steps: a whole number is expected, not \"many\""},
      {With(R"(, "threads": 0)"), "job.json: threads: 0 is out of range: at least 1"},
      {With(R"(, "threads": 100000)"), "job.json: threads: 100000 is out of range: at most 1024"},
      {With(R"(, "accumulate": 300000)"),
       "job.json: accumulate: 300000 is out of range: at most 250000"},
      {With(R"(, "seed": 18446744073709551615)"),
       "job.json: seed: 18446744073709551615 is out of range: at most 9223372036854775807"},
      {With(R"(, "recompute": {"modules": [99999999999]})"),
       "job.json: recompute.modules: a list of numbers from 0 is expected"},
      {With(R"(, "nan": "stpo")"), "job.json: nan: \"stpo\" is not known (did you mean \"stop\"?)"},
      {With("", R"("adamw")"),
       "job.json: optimizer: an object is expected, not \"adamw\"\n  for example {\"type\": "
       "\"adamw\""},
      {With(R"(, "memory": "1GiB")"),
       "job.json: memory: it is a limit for zb-auto, which also needs \"costs\""},
      {With(R"(, "minibatch_size": 9)"),
       "job.json: give either \"microbatch_size\" or \"minibatch_size\", not both"},
      {With("", R"({"type": "adamv"})"),
       "job.json: optimizer.type: \"adamv\" is not known (did you mean \"adam\"?)"},
      {With("", R"({"type": "sgd", "betas": [0, 0]})"),
       "job.json: optimizer: unknown key \"betas\""},
      {With("", R"({"type": "adamw", "betas": [0.9, 1]})"),
       "job.json: optimizer.betas: two numbers of [0, 1)"},
      {With("", R"({"type": "sgd", "lr": -1})"),
       "job.json: optimizer.lr: -1.0 is out of range: at least 0.0"},
      {With("", R"({"type": "sgd", "lr": 1e40})"),
       "job.json: optimizer.lr: 1e+40 is out of range: below 3.4e+38, the most that a float32"},
      {With("", R"({"type": "sgd", "lr": NaN})"),
       "job.json:2:37: NaN is not a JSON number: write a finite one"},
      {With(R"(, "buffers": "mean")"),
       "job.json: buffers: \"mean\" is not known (did you mean \"merge\"?)\n  known: first, merge"},
      {With(R"(, "schedule": "1f1")"),
       "job.json: schedule: unknown schedule \"1f1\" (did you mean \"1f1b\"?)\n  known: gpipe, "},
      {With(R"(, "schedule": "pipedream2bw", "plan": "p.csv")"),
       "job.json: schedule: unknown schedule \"pipedream2bw\" (did you mean \"pipedream-2bw\"?)"},
      {With(R"(, "schedule": 5)"), "job.json: schedule: a string is expected, not 5"},
      {With(R"(, "reduce": "exactly")"), "job.json: reduce: \"exactly\" is not known"},
      {With(R"(, "recompute": [0])"), "job.json: recompute: true, false, or"},
      {With(R"(, "recompute": {"stages": [-1]})"),
       "job.json: recompute.stages: a list of numbers from 0 is expected, not [-1]"},
      {"{}", "job.json: the key \"data\" is missing"},
      {"{\n  \"data\": ]}", "job.json:2:11: not JSON"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(JobError(c.text).substr(0, c.expected.size()), c.expected) << c.text;
}

}  // namespace pipewright
