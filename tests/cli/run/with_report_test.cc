// Writes the page of a run of a small package, or refuses to before the run.
#include "cli/run/with_report.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

RunOptions SmallRun() {
  RunOptions run;
  run.package = SmallPackage("reported.pkg");
  run.job = TempPath("reported.json");
  WriteFile(run.job,
            R"({"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "t"},
 "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1}, "microbatches": 2, "microbatch_size": 2})");
  return run;
}

// Returns what rank 0 printed. `worked` counts the ranks that ran.
std::string Report(const RunOptions& run, int& worked) {
  std::FILE* output = std::tmpfile();
  std::atomic<int> count = 0;
  const auto work = [&](Transport& transport) {
    WithReport(
        run, transport, output, [&] { ++count; },
        [](const Job& job, PageInput&) { EXPECT_EQ(job.microbatches, 2); });
  };
  const auto finish = [&] {
    worked = count;
    std::rewind(output);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), output));
    std::fclose(output);
    return text;
  };
  try {
    RunThreads(2, work);
  } catch (...) {
    finish();
    throw;
  }
  return finish();
}

TEST(WithReport, WritesNoPageUnlessAsked) {
  int worked = 0;
  EXPECT_EQ(Report(SmallRun(), worked), "");
  EXPECT_EQ(worked, 2);
}

TEST(WithReport, WritesThePageAfterTheRun) {
  RunOptions run = SmallRun();
  run.report = TempPath("page.html");
  int worked = 0;
  EXPECT_NE(Report(run, worked).find(run.report), std::string::npos);
  EXPECT_EQ(worked, 2);
  EXPECT_NE(ReadFile(run.report).find("Report of " + run.package), std::string::npos);
}

TEST(WithReport, RefusesToReplaceOtherFilesBeforeTheRun) {
  RunOptions run = SmallRun();
  run.report = TempPath("thesis.html");
  WriteFile(run.report, "mine");
  int worked = -1;
  EXPECT_EQ(ErrorOf([&] { Report(run, worked); }),
            "reading on rank 0: " + run.report +
                ": already exists, and is not a page of an earlier report\n  name another file, "
                "or remove this one");
  EXPECT_EQ(worked, 0);
  EXPECT_EQ(ReadFile(run.report), "mine");
}

}  // namespace
}  // namespace pipewright
