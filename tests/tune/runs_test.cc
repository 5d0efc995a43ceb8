// Programs that fail, and profiles of sizes that a model refuses.
#include "tune/runs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "tests/environment.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"
#include "tune/profiles.h"

namespace pipewright {
namespace {

// The programs are in another folder than this test.
TEST(TuneRuns, SayWhichProgramFailed) {
  TuneRun run{"m.pkg", "job.json", "conf.json", 2, true, 3};
  const std::string said = ErrorOf([&] { MeasureStep(run, "m.jsonl", TuneBudget()); });
  EXPECT_NE(said.find("pipewright-run --color never --in-process 2 train m.pkg job.json --conf "
                      "conf.json --steps 9 --metrics m.jsonl --quiet"),
            std::string::npos)
      << said;
}

// What it says matters more than its name and options.
TEST(TuneRuns, SayFirstWhatIsWrong) {
  const std::string said = ErrorOf(
      [&] { OutputOf({"/bin/sh", "-c", "echo 'sh: x is 1, not 2' >&2; exit 1"}, TuneBudget()); });
  EXPECT_TRUE(said.starts_with("x is 1, not 2 (said by /bin/sh -c ")) << said;
}

TEST(TuneRuns, StartRanksWhereTheyAreToBe) {
  using Words = std::vector<std::string>;
  const TuneStart start = {"a:2,b:1", "mpirun --mca btl tcp"};
  EXPECT_EQ(StartOptions({}, 2, false), Words({"-n", "2"}));
  EXPECT_EQ(StartOptions(start, 3, false),
            Words({"--hosts", "a:2,b:1", "--mpirun", "mpirun --mca btl tcp", "-n", "3"}));
  EXPECT_EQ(StartOptions(start, 2, true), Words({"--in-process", "2"}));
  TuneRun run{"m.pkg", "job.json", "conf.json", 1, false, 3, start};
  EXPECT_NE(ErrorOf([&] {
              BenchRun(run, TuneBudget());
            }).find("--hosts a:2,b:1 --mpirun mpirun --mca btl tcp -n 1 bench m.pkg"),
            std::string::npos);
}

TEST(TuneRuns, NeedMpirunForSeveralProcesses) {
  const Environment::Variables nowhere = {{"PATH", "/nowhere"}};
  const Environment none(nowhere);
  TuneRequest request;
  request.ranks = 2;
  EXPECT_EQ(
      ErrorOf([&] { CheckMpirun(request); }),
      "mpirun: is not found, and starts the ranks that tune measures\n  install Open MPI, name "
      "its mpirun (--mpirun), or let ranks be threads (--in-process)");
  request.start.mpirun = "/bin/sh -x";
  CheckMpirun(request);
  request.start.mpirun = "/nowhere/mpirun";
  EXPECT_THROW(CheckMpirun(request), Error);
  request.start.mpirun.clear();
  request.ranks = 1;
  CheckMpirun(request);
  request.ranks = 2, request.in_process = true;
  CheckMpirun(request);
}

TEST(TuneRuns, RanksOfAHostShareItsCores) {
  EXPECT_EQ(RanksOnOneHost("", 4), 4);
  EXPECT_EQ(RanksOnOneHost("a:2,b:2", 4), 2);
  EXPECT_EQ(RanksOnOneHost("a:2,b:2", 1), 1);
  EXPECT_EQ(RanksOnOneHost("a,b,c", 3), 1);
  EXPECT_EQ(RanksOnOneHost("a,b,a", 3), 2);
}

TEST(TuneRuns, InferenceTriesOneThread) {
  TuneRequest request;
  Job job;
  job.threads = 4;
  EXPECT_EQ(ThreadCounts(request, job, 2, 8), (std::set<int>{4})) << "a job without text";
  request.input = "in.safetensors";
  EXPECT_EQ(ThreadCounts(request, job, 2, 8), (std::set<int>{1, 4}));
  EXPECT_EQ(ThreadCounts(request, job, 1, 8), (std::set<int>{1, 4, 8}));
}

TEST(TuneRuns, TheJobsOwnSizeMustBeMeasured) {
  TuneRequest request;
  request.package = "m.pkg", request.output = TempPath("out"), request.ranks = 2;
  request.quiet = true;
  std::filesystem::create_directories(request.output);
  Job job;
  job.microbatch_size = 4;
  TuneProblem problem;
  problem.manifest.modules.resize(2);
  std::vector<std::string> notes;
  EXPECT_THROW(MeasureProfiles(request, job, {{4}, 2}, TuneBudget(), problem, notes), Error);
  EXPECT_TRUE(std::filesystem::is_empty(request.output));
}

}  // namespace
}  // namespace pipewright
