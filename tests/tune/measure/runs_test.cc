// Programs that fail, and profiles of sizes that a model refuses.
#include "tune/measure/runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/process/host_resources.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "tests/environment.h"
#include "tests/error_text.h"
#include "tests/plan/tune/chain.h"
#include "tests/temp_folder.h"
#include "tune/measure/kept.h"
#include "tune/measure/profiles.h"

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

// Users did not start the program, so its message comes before its command line.
TEST(TuneRuns, SayFirstWhatIsWrong) {
  const std::string said = ErrorOf(
      [&] { OutputOf({"/bin/sh", "-c", "echo 'sh: x is 1, not 2' >&2; exit 1"}, TuneBudget()); });
  EXPECT_TRUE(said.starts_with("x is 1, not 2 (said by /bin/sh -c ")) << said;
}

TEST(TuneRuns, ALossMayBeNaN) {
  const Json figures = ParseJson(R"({"loss": null, "own": 1.5})", "figures");
  EXPECT_TRUE(std::isnan(LossIn(figures, "loss")));
  EXPECT_EQ(LossIn(figures, "own"), 1.5);
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

TEST(TuneRuns, TooLargeIsMoreThanNineTenthsOfTheMemory) {
  TuneRequest request;
  EXPECT_EQ(WhyTooLarge(request, 3072, 3600), "");
  EXPECT_EQ(WhyTooLarge(request, 3072, 3072),
            "tensors would take 3 KiB, more than 90 % of the memory that is here (3 KiB)");
  request.start.hosts = "a,b";
  EXPECT_EQ(WhyTooLarge(request, 3072, 3072), "") << "ranks are elsewhere";
}

TEST(TuneRuns, RanksOfAHostShareItsCores) {
  EXPECT_EQ(RanksOnOneHost("", 4), 4);
  EXPECT_EQ(RanksOnOneHost("a:2,b:2", 4), 2);
  EXPECT_EQ(RanksOnOneHost("a:2,b:2", 1), 1);
  EXPECT_EQ(RanksOnOneHost("a,b,c", 3), 1);
  EXPECT_EQ(RanksOnOneHost("a,b,a", 3), 2);
}

TEST(TuneRuns, NumbersOfRanks) {
  TuneRequest request;
  request.ranks = 6;
  TuneProblem problem;
  problem.manifest.modules.resize(3);
  EXPECT_EQ(RankCounts(request, problem), (std::set<int>{1, 2, 3, 4, 6}));
  problem.manifest.modules.resize(7);
  EXPECT_EQ(RankCounts(request, problem), (std::set<int>{1, 2, 4, 6}));
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

// Threads change bits, and those of other machines are not here.
TEST(TuneRuns, TrainingTriesTheShareOfTheCores) {
  TuneRequest request;
  Job job;
  job.text = "{}", job.threads = 1;
  EXPECT_EQ(ThreadCounts(request, job, 2, 8), (std::set<int>{1, 4}));
  request.exact = true;
  EXPECT_EQ(ThreadCounts(request, job, 2, 8), std::set<int>{1});
  request.exact = false, request.machines = "machines.json";
  EXPECT_EQ(ThreadCounts(request, job, 2, 8), std::set<int>{1});
  request.machines = "";
  job.text = R"({"threads": 1})";
  EXPECT_EQ(ThreadCounts(request, job, 2, 8), std::set<int>{1});
}

// A package that only profiles from an earlier tune know: the programs are not here.
struct Kept {
  TuneRequest request;
  Job job;
  TuneProblem problem = ProblemOf(std::vector<double>(2, 1e-3), 8);
  std::vector<std::string> notes;
  double one_thread = 1;  // times with one thread divided by those with more
  bool all_sizes = true;  // of more than one sample, with one thread

  Kept() {
    request.package = TempPath("kept.pkg"), request.output = request.scratch = TempPath("out");
    request.ranks = 1;
    request.input = TempPath("rows.safetensors");
    request.quiet = true;
    std::filesystem::create_directories(request.output);
    std::filesystem::create_directories(request.package);
    for (ModuleInfo& module : problem.manifest.modules) {
      module.code = module.name;
      WriteFile(request.package + "/" + module.code, "pass");
    }
    WriteFile(request.package + "/manifest.json", "{}");
    WriteSafetensors(request.input, {});
    job.microbatch_size = 8, job.threads = 1;
  }

  std::string Measure(const std::set<int64_t>& kept, const std::set<int64_t>& wanted) {
    for (const TuneProfile& each : std::vector<TuneProfile>(std::move(problem.profiles))) {
      if (each.ranks > 1 || !kept.count(each.profile.microbatch)) continue;
      for (int threads : {1, CoresHere()}) {
        if (!all_sizes && threads < CoresHere() && each.profile.microbatch > 1) continue;
        Profile profile = each.profile;
        profile.threads = threads;
        for (ProfileNode& node : profile.nodes)
          if (threads == 1) node.forward.median *= one_thread, node.backward.median *= one_thread;
        WriteKept(KeptFor(request, problem.manifest),
                  KeptPrefix(request, job) + "profile-1-ranks-" + std::to_string(threads) +
                      "-threads-" + std::to_string(profile.microbatch) + "-samples",
                  request.repeat,
                  {{"profile", ParseJson(WriteProfile(profile), "")}, {"others", 0}});
      }
    }
    problem.profiles.clear();
    return ErrorOf(
        [&] { MeasureProfiles(request, job, {wanted, 1}, TuneBudget(), problem, notes); });
  }
};

TEST(TuneRuns, AllRowsOfInferenceNeedNotBeMeasured) {
  Kept some;
  EXPECT_EQ(some.Measure({1, 4}, {1, 2, 4, 8}), "");
  std::set<int64_t> sizes;
  for (const TuneProfile& each : some.problem.profiles) sizes.insert(each.profile.microbatch);
  EXPECT_EQ(sizes, (std::set<int64_t>{1, 2, 4}));
  EXPECT_NE(some.notes.at(0).find("no microbatches of 8 samples: "), std::string::npos);
  Kept none;
  std::filesystem::remove_all(none.request.package + "/tuned");
  const std::string said = none.Measure({}, {4, 8});
  EXPECT_NE(said.find("no size of microbatches can be measured: no microbatches of 8"),
            std::string::npos)
      << said;
}

// A module keeps a petabyte for each sample.
TEST(TuneRuns, WhatThisHostCannotHoldIsNotMeasured) {
  Kept some;
  std::filesystem::remove_all(some.request.package + "/tuned");
  for (TuneProfile& each : some.problem.profiles) each.profile.nodes[1].kept = 8e15;
  EXPECT_EQ(some.Measure({8}, {8, 16}), "");
  ASSERT_FALSE(some.notes.empty());
  EXPECT_EQ(some.notes[0].find("no microbatches of 16 samples: " + some.request.package +
                               ": tensors would take 14.21 PiB"),
            0u)
      << some.notes[0];
}

// The smallest microbatches tell: the others with one thread are not kept here, and nothing runs.
TEST(TuneRuns, FewerThreadsThanCoresAreLeftOutIfFarSlower) {
  const int cores = CoresHere();
  for (const auto& [work, ratio, threads, tried] : {std::tuple{20e-3, 1.6, cores, false},
                                                    {20e-3, 1.4, cores, true},
                                                    {5e-4, 1.6, cores, true},
                                                    {20e-3, 1.6, 1, true}}) {
    Kept some;
    std::filesystem::remove_all(some.request.package + "/tuned");
    some.problem.profiles = ProblemOf(std::vector<double>(2, work), 8).profiles;
    some.job.threads = threads, some.one_thread = ratio, some.all_sizes = tried;
    EXPECT_EQ(some.Measure({1, 8}, {1, 8}), "");
    const std::vector<std::string> expected = {
        "not tried: 1 rank with 1 thread, where modules take 1.6 times as long as with " +
        Counted(cores, "thread")};
    std::set<int> found;
    for (const TuneProfile& each : some.problem.profiles) found.insert(each.profile.threads);
    EXPECT_EQ(some.notes, tried || cores == 1 ? std::vector<std::string>() : expected);
    EXPECT_EQ(found, tried ? std::set({1, cores}) : std::set({cores}));
  }
}

TEST(TuneRuns, TheJobsOwnSizeMustBeMeasured) {
  Kept some;
  some.request.input.clear();
  const std::string said = some.Measure({1, 4}, {1, 2, 4, 8});
  EXPECT_NE(said.find("--microbatch-size 8"), std::string::npos) << said;
}

// The model may not fit into the memory of a single rank, for example.
TEST(TuneRuns, TheJobsOwnSizeNeedNotRunOnEveryNumberOfRanks) {
  Kept some;
  some.request.input.clear();
  some.request.ranks = 2, some.request.in_process = true;
  const Profile profile = ProfileOf(std::vector<double>(2, 1e-3), 8);
  ASSERT_TRUE(WriteKept(KeptFor(some.request, some.problem.manifest),
                        KeptPrefix(some.request, some.job) + "profile-2-ranks-1-threads-8-samples",
                        some.request.repeat,
                        {{"profile", ParseJson(WriteProfile(profile), "")}, {"others", 0}}));
  for (int own_ranks : {1, 2}) {
    some.problem.profiles.clear(), some.notes.clear();
    EXPECT_TRUE(MeasureProfiles(some.request, some.job, {{8}, own_ranks}, TuneBudget(),
                                some.problem, some.notes));
    ASSERT_EQ(some.problem.profiles.size(), 1u);
    EXPECT_EQ(some.problem.profiles[0].ranks, 2);
    const bool noted =
        std::any_of(some.notes.begin(), some.notes.end(), [](const std::string& note) {
          return note.starts_with("no microbatches of 8 samples on 1 rank with 1 thread: ");
        });
    EXPECT_TRUE(noted);
  }
}

TEST(OutputOf, TellsHowManyCoresOtherProgramsUse) {
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
    }
  });
  double others = 0;
  OutputOf({"sleep", "0.5"}, TuneBudget(), &others);
  done = true;
  other.join();
  EXPECT_GT(others, kDisturbing);
}

}  // namespace
}  // namespace pipewright
