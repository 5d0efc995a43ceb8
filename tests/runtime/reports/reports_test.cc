// Tests the reports of a run: metrics, lines for the user, and the messages that bring them to rank
// 0.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "base/json.h"
#include "runtime/cpu/progress_hook.h"
#include "runtime/reports/metrics_file.h"
#include "runtime/reports/offload_report.h"
#include "runtime/reports/progress.h"
#include "runtime/reports/rank_reports.h"
#include "runtime/reports/step_reports.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

TEST(MetricsFile, KeepsTheLinesOfEarlierSteps) {
  const std::string path = TempPath("metrics.json");
  WriteFile(path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4");  // torn
  {
    MetricsFile file(path, 2);
    file.Add("{\"step\":3,\"new\":true}", 3);
    // Nobody else may write there meanwhile.
    EXPECT_NE(ErrorOf([&] { MetricsFile(path, 0); }).find(path + ": is written by another run: "),
              std::string::npos);
  }
  EXPECT_EQ(ReadFile(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"new\":true}\n");
  {
    MetricsFile file(path, 0);
  }
  EXPECT_EQ(ReadFile(path), "");  // a run that starts anew
  EXPECT_NE(ErrorOf([&] { MetricsFile(testing::TempDir(), 0); }).find(": cannot be written: Is a "),
            std::string::npos);
}

TEST(Progress, Numbers) {
  EXPECT_EQ(Grouped(0.4), "0");
  EXPECT_EQ(Grouped(999.6), "1,000");
  EXPECT_EQ(Grouped(12345.6), "12,346");
  EXPECT_EQ(Grouped(123456789), "123,456,789");
  EXPECT_EQ(Bubble({}), -1);
  EXPECT_DOUBLE_EQ(Bubble({{1, 4, 0}, {2, 4, 0}}), 0.625);
  EXPECT_EQ(Bubble({{5, 4, 0}}), 0);  // never negative
  Evaluation evaluation;
  evaluation.losses = {{1, 6, 8, 3}, {0.5, 2, 4, 0}};
  EXPECT_EQ(AccuracyText(evaluation), " accuracy 37.50 %");
  Job job;
  job.losses.resize(2);
  const Json two = EvaluationJson(job, evaluation);
  EXPECT_EQ(two,
            (Json{{"loss", 1.0}, {"accuracy", 0.375}, {"targets", 8}, {"terms", {0.75, 0.5}}}));
  job.losses.resize(1), evaluation.losses.resize(1);
  EXPECT_DOUBLE_EQ(EvaluationJson(job, evaluation)["perplexity"].get<double>(), std::exp(0.75));
}

TEST(Progress, WritesALinePerStepAndSomeForTheUser) {
  Job job = SmallJob();
  job.steps = 20, job.log_every = 10;
  job.metrics = TempPath("steps.json");
  testing::internal::CaptureStdout();
  {
    Progress progress(job, "samples", 0, nullptr);
    for (int step = 0; step < 12; ++step) {
      StepReport report;
      report.step = step, report.loss = 0.5 + step, report.losses = {step + 0., step + 1.};
      report.counted = 40, report.seconds = 2, report.elapsed = 4, report.learning_rate = 0.1;
      report.outcome.skipped = step == 9;
      progress.Step(report, {{1, 2, 3 << 20}, {2, 2, 5 << 20}});
    }
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "step      1/20  loss 0.5000  10 samples/s  bubble 25 %  memory 5 MiB\n"
            "step     10/20  loss 9.5000  10 samples/s  bubble 25 %  memory 5 MiB  skipped: "
            "gradients overflowed\n");
  std::istringstream lines(ReadFile(job.metrics));
  std::vector<Json> steps;
  for (std::string text; std::getline(lines, text);) steps.push_back(Json::parse(text));
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(steps[2], (Json{{"step", 3},
                            {"loss", 2.5},
                            {"losses", {2., 3.}},
                            {"samples_per_second", 20.},
                            {"seconds", 2.},
                            {"learning_rate", 0.1},
                            {"bubble", 0.25},
                            {"memory", {3 << 20, 5 << 20}}}));
}

TEST(Progress, WarnsOfAValidationThatIsNotFinite) {
  Job job = SmallJob();
  job.metrics = TempPath("validated.json");
  for (const bool stops : {true, false}) {
    job.stop_on_nan = stops;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    {
      Evaluation evaluation;
      evaluation.losses = {{.loss = std::numeric_limits<double>::quiet_NaN(), .targets = 1}};
      StepReport report;
      report.step = 2, report.counted = 4, report.seconds = 1, report.elapsed = 1;
      report.validation = &evaluation;
      Progress(job, "samples", 0, nullptr).Step(report, {});
    }
    const std::string told = testing::internal::GetCapturedStderr();
    const std::string shown = testing::internal::GetCapturedStdout();
    EXPECT_NE(shown.find("validation loss nan"), std::string::npos) << shown;
    const size_t at = told.find("warning: step 3: the validation loss is nan, and the training ");
    EXPECT_EQ(at != std::string::npos, stops) << told;
    EXPECT_TRUE(Json::parse(ReadFile(job.metrics)).at("validation").at("loss").is_null());
  }
}

TEST(StepReports, ArriveOnRankZeroInTheirOrder) {
  Job job = SmallJob();
  job.losses.resize(2);
  for (int from : {0, 1})
    RunThreads(2, [&](Transport& transport) {
      StepReports reports(job, from, transport);
      for (int step = 0; step < 3; ++step) {
        if (transport.rank() == from) {
          Evaluation evaluation;
          evaluation.losses = {{1, 2, 3, 4}, {5, 6, 7, 8}};
          StepReport report;
          report.step = step, report.losses = {1, 2}, report.terms = {3, 4}, report.loss = 5;
          report.counted = 6, report.checkpoint = 7, report.outcome.norm = 8;
          report.outcome.skipped = step == 1;
          if (step == 2) report.validation = &evaluation;
          reports.Send(report);
        }
        if (transport.rank() == 0) reports.Expect();
      }
      for (int step = 0; transport.rank() == 0 && step < 3; ++step) {
        StepReport report;
        Evaluation evaluation;
        ASSERT_TRUE(reports.Next(true, report, evaluation));
        EXPECT_EQ(report.step, step);
        EXPECT_EQ(report.losses, (std::vector<double>{1, 2}));
        EXPECT_EQ(report.terms, (std::vector<double>{3, 4}));
        EXPECT_EQ(std::tuple(report.loss, report.counted, report.checkpoint, report.outcome.norm),
                  std::tuple(5., 6, 7., 8.));
        EXPECT_EQ(report.outcome.skipped, step == 1);
        ASSERT_EQ(report.validation != nullptr, step == 2);
        if (step < 2) continue;
        EXPECT_EQ(report.validation->losses[1].targets, 7);
        EXPECT_DOUBLE_EQ(report.validation->mean(), 2. / 3 + 5 * 6. / 7);
      }
      StepReport none;
      Evaluation evaluation;
      if (transport.rank() == 0) {
        EXPECT_FALSE(reports.Next(true, none, evaluation));
      }
      reports.Finish();
    });
}

TEST(RankReports, TheRootHasTheNewestStepOfAllRanks) {
  RunThreads(3, [](Transport& transport) {
    RankReports reports(transport, 1);
    for (int step = 0; step < 4; ++step)
      reports.Add({step + 0.5, 10. * step, 100. * transport.rank()});
    reports.Finish();
    if (transport.rank() != 1) return;
    ASSERT_EQ(reports.newest().size(), 3u);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(reports.newest()[rank].busy, 3.5);
      EXPECT_EQ(reports.newest()[rank].total, 30);
      EXPECT_EQ(reports.newest()[rank].memory, 100 * rank);
    }
  });
}

TEST(OffloadReport, SaysWhatIsResident) {
  const std::string file = TempPath("report.json"), a_file = TempPath("a_file");
  WriteFile(a_file, "");
  SmallData data;
  WithSession(SmallPackage("report.pkg"), 2, SmallJob(), data, [&](Session& session) {
    CheckOffload(TempPath("not there"), file, session.transport);
    EXPECT_EQ(ErrorOf([&] { CheckOffload(a_file, "", session.transport); }),
              a_file +
                  ": is not a folder\n  leave out --offload-dir: weights are read from the "
                  "package's files");
    if (session.transport.rank() == 0) {
      EXPECT_EQ(ErrorOf([&] {
                  CheckOffload("", "/dev/null/x", session.transport);
                }).find("--offload-report: "),
                0u);
    }
    EXPECT_EQ(ReportOffload(session, 1, file), "");  // nothing is on disk
  });
  const Json ranks = Json::parse(ReadFile(file))["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(
        ranks[rank],
        (Json{{"rank", rank}, {"total", 12}, {"resident", 12}, {"sweeps", 1}, {"payload", 0}}));
}

// A transport that counts how often it may make progress.
struct Counting : Transport {
  explicit Counting(bool needs) : needs(needs) {}
  bool needs;
  int progress = 0;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int max_tag() const override { return 1000; }
  Token Send(int, int, Bundle) override { return nullptr; }
  Token Recv(int, int, Bundle) override { return nullptr; }
  bool Test(const Token&) override { return true; }
  void Wait(const Token&) override {}
  void Progress() override { ++progress; }
  bool NeedsProgress() const override { return needs; }
  std::vector<std::string> AllGather(const std::string& bytes) override { return {bytes}; }
  [[noreturn]] void Abort(const std::string& message, int) override { throw Error(message); }
};

TEST(ProgressHook, CallsTheInnermostTransportThatNeedsIt) {
  Counting outer(true), inner(true), idle(false);
  auto compute = [] { return at::ones({100}).add(1).sum().item<float>(); };
  {
    ProgressHook hook(outer);
    EXPECT_EQ(compute(), 200);
    EXPECT_GE(outer.progress, 2);  // at least one for each of two large results
    const int before = outer.progress;
    {
      ProgressHook nested(inner);
      compute();
      EXPECT_EQ(outer.progress, before);
      EXPECT_GE(inner.progress, 2);
    }
    ProgressHook none(idle);
    compute();
    EXPECT_EQ(idle.progress, 0);
    EXPECT_GT(outer.progress, before);
  }
  const int after = outer.progress;
  EXPECT_EQ(compute(), 200);
  EXPECT_EQ(outer.progress, after);
}

}  // namespace
}  // namespace pipewright
