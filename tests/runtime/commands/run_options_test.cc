// Checks what the commands of a run make of their options.
#include "runtime/commands/run_options.h"

#include <gtest/gtest.h>

#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

std::string JobFile(const std::string& steps = "\"steps\": 5, ") {
  const std::string path = TempPath("options.json");
  WriteFile(path,
            R"({"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "t"},
 "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1}, "microbatches": 2, "microbatch_size": 2,
 )" + steps + R"("save": "a.safetensors", "checkpoint": {"to": "kept", "every": 1}})");
  return path;
}

TEST(RunOptions, OverrideTheJob) {
  RunOptions run;
  run.job = JobFile();
  EXPECT_EQ(ReadJobOf(run).steps, 5);
  EXPECT_EQ(ReadJobOf(run).save, TempPath("a.safetensors"));
  run.steps = 7, run.save = "b.safetensors", run.metrics = "m.jsonl", run.report = "p.html";
  run.checkpoint = "elsewhere", run.schedule = "gpipe", run.set = {"optimizer.lr=0.5"};
  const Job job = ReadJobOf(run);
  EXPECT_EQ(job.steps, 7);
  EXPECT_EQ(job.save, "b.safetensors");
  EXPECT_EQ(job.metrics, "m.jsonl");
  EXPECT_EQ(job.report, "p.html");
  EXPECT_EQ(job.checkpoint.folder, "elsewhere");
  EXPECT_EQ(job.schedule, "gpipe");
  EXPECT_EQ(job.optimizer.lr, 0.5);
}

// Checkpoints keep the text, which tells a resumed run how long the schedule was.
TEST(RunOptions, StepsAreInTheTextIfTheLearningRateFollowsThem) {
  RunOptions run;
  run.steps = 7;
  auto steps = [&](const std::string& rate) {
    run.set = {"optimizer.lr_schedule=" + rate};
    const Job job = ReadJobOf(run);
    EXPECT_EQ(job.steps, 7);
    return ParseJson(job.text, "text").value("steps", 0);
  };
  const std::string cosine = R"({"type": "cosine"})";
  run.job = JobFile();
  EXPECT_EQ(steps(cosine), 5);
  run.job = JobFile("");
  EXPECT_EQ(steps(cosine), 7);
  EXPECT_EQ(steps(R"({"type": "cosine", "steps": 3})"), 0);
  EXPECT_EQ(steps(R"({"warmup": 2})"), 0);
}

TEST(RunOptions, BecomeThoseOfASession) {
  RunOptions run;
  run.package = "p", run.conf = "c", run.weights = "w", run.device_map = "d";
  SessionOptions session = SessionOptionsOf(run, true);
  EXPECT_EQ(session.package + session.conf + session.weights + session.device_map, "pcwd");
  EXPECT_TRUE(session.training);
  EXPECT_FALSE(session.resumes || session.keep_gradients || session.trace_memory ||
               session.verify_files);
  run.resume_from = "kept/step1", run.save_gradients = "g", run.trace = "t";
  run.verify_files = true;
  session = SessionOptionsOf(run, true);
  EXPECT_TRUE(session.resumes && session.keep_gradients && session.trace_memory &&
              session.verify_files);
  EXPECT_FALSE(SessionOptionsOf(run, false).resumes) << "only training resumes";
}

// A rank with other options than the others would leave them waiting.
TEST(RunOptions, RanksAgreeOnThem) {
  const AgreedFields same = AgreedOptions({});
  EXPECT_EQ(AgreedOptions({}), same);
  const std::vector<std::function<void(RunOptions&)>> changes = {
      [](RunOptions& o) { o.weights = "w"; },     [](RunOptions& o) { o.set = {"a=1"}; },
      [](RunOptions& o) { o.checkpoint = "c"; },  [](RunOptions& o) { o.steps = 0; },
      [](RunOptions& o) { o.schedule = "1f1b"; }, [](RunOptions& o) { o.save = "s"; },
      [](RunOptions& o) { o.metrics = "m"; },     [](RunOptions& o) { o.report = "r"; },
      [](RunOptions& o) { o.trace = "t"; },       [](RunOptions& o) { o.save_gradients = "g"; },
      [](RunOptions& o) { o.resume = true; },     [](RunOptions& o) { o.resume_from = "f"; },
      [](RunOptions& o) { o.input = "i"; },       [](RunOptions& o) { o.output = "o"; },
      [](RunOptions& o) { o.outputs = {"y"}; },   [](RunOptions& o) { o.microbatches = 2; },
      [](RunOptions& o) { o.on_request = true; }, [](RunOptions& o) { o.matmul = MatMul::kAuto; },
      [](RunOptions& o) { o.device_map = "d"; },  [](RunOptions& o) { o.verify_files = true; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    RunOptions changed;
    changes[i](changed);
    const AgreedFields fields = AgreedOptions(changed);
    ASSERT_EQ(fields.size(), same.size());
    int different = 0;
    for (size_t k = 0; k < fields.size(); ++k) different += fields[k] != same[k];
    EXPECT_EQ(different, 1) << "change " << i;
  }
  // Threads may differ, and files are compared by their contents.
  RunOptions apart;
  apart.threads = 3, apart.package = "p", apart.job = "j", apart.conf = "c";
  EXPECT_EQ(AgreedOptions(apart), same);
}

TEST(RunOptions, TheLossIsOnTheLastStagesRank) {
  SmallData data;
  WithSession(SmallPackage("loss_rank.pkg", {1, 0}), 2, SmallJob(), data,
              [](Session& session) { EXPECT_EQ(LossRank(session), 0); });
}

}  // namespace
}  // namespace pipewright
