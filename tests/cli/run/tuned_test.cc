// What --tune refuses before it looks for a result.
#include "cli/run/tuned.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "tests/error_text.h"

namespace pipewright {
namespace {

TEST(Tuned, RefusesWhatItChooses) {
  RunOptions run;
  run.schedule = "gpipe";
  UseTuned(run, false);  // without --tune, it changes nothing
  EXPECT_EQ(run.schedule, "gpipe");
  CLI::App app;
  AddTune(app);
  app.parse("--tune");
  EXPECT_EQ(ErrorOf([&] { UseTuned(run, false); }),
            "--tune: chooses conf and schedule\n  leave out --conf, --device-map and --schedule");
  run.schedule.clear();
  run.set = {"optimizer.lr=1", "threads=2"};
  EXPECT_EQ(ErrorOf([&] { UseTuned(run, false); }),
            "--set optimizer.lr=1: --tune depends on the whole job\n  write it into the job");
  run.set.clear();
  run.resume_from = "kept";
  EXPECT_NE(ErrorOf([&] {
              UseTuned(run, false);
            }).find("--resume-from: --tune resumes from the job's own"),
            std::string::npos);
}

}  // namespace
}  // namespace pipewright
