// Tests the guard of a rank: what it says when the rank dies, and when it says nothing.
#include "runtime/watch/watchdog.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "runtime/watch/supervise.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

// Runs `rank` in a process with a guard, and returns what both wrote to stderr. The pipe ends once
// the guard, which outlives the rank, has closed it too.
std::string Watched(const std::function<void(StatusFile&)>& rank) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const int child = fork();
  if (child == 0) {
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    {
      StatusFile status("", 3);
      Guard guard({"prog", 0, false}, status, "");
      status.Begin(6, 17, 2, 5, "2F5", 0);
      rank(status);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char bytes[512];
  for (ssize_t n; (n = read(ends[0], bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

// Steps are counted from 1 for people.
TEST(Guard, TellsHowAndWhereTheRankDied) {
  const std::string killed = Watched([](StatusFile&) { raise(SIGKILL); });
  EXPECT_TRUE(killed.starts_with("prog: rank 3 on ")) << killed;
  EXPECT_NE(killed.find(" died of signal 9 (Killed)"), std::string::npos) << killed;
  EXPECT_TRUE(killed.ends_with(": step 7, stage 2, microbatch 5, action 2F5 (entry 17)\n"))
      << killed;
  const std::string recorded = Watched([](StatusFile& status) {
    status.SetSignal(SIGSEGV);
    _exit(1);
  });
  EXPECT_NE(recorded.find(" died of signal 11 (Segmentation fault): "), std::string::npos);
  const std::string exited = Watched([](StatusFile& status) {
    status.SetState(RankState::kExited);
    _exit(0);
  });
  EXPECT_NE(exited.find(" called exit() in the middle of the run: "), std::string::npos);
}

TEST(Guard, SaysNothingAfterANormalEnd) {
  for (RankState state : {RankState::kFinished, RankState::kFailed, RankState::kTerminated})
    EXPECT_EQ(Watched([&](StatusFile& status) { status.SetState(state); }), "");
}

TEST(HasEnded, KnowsZombies) {
  EXPECT_FALSE(HasEnded(getpid()));
  const int child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_TRUE(HasEnded(child)) << "a zombie";
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(HasEnded(child));
}

TEST(ExplainEnd, IsTrueForTheFirstOfARun) {
  const std::string folder = TempPath("ended");
  std::filesystem::remove_all(folder);  // of a run before, with --gtest_repeat
  std::filesystem::create_directories(folder);
  EXPECT_FALSE(EndIsExplained(folder, "a"));
  EXPECT_TRUE(ExplainEnd(folder, "a"));
  EXPECT_FALSE(ExplainEnd(folder, "a"));
  EXPECT_TRUE(EndIsExplained(folder, "a"));
  EXPECT_FALSE(EndIsExplained(folder, "b")) << "another run in the same folder";
}

// Only the ranks of the fullest host count where hosts are given.
TEST(CheckOpenFiles, ComparesTheLimitWithTheRanksOfOneHost) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(before.rlim_cur, 1024);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  SuperviseOptions options;
  options.mpirun = "/usr/bin/mpirun --oversubscribe";
  options.ranks = 4;
  EXPECT_NO_THROW(CheckOpenFiles(options));
  options.ranks = 100000;
  std::string text;
  try {
    CheckOpenFiles(options);
  } catch (const Error& e) {
    text = e.what();
  }
  EXPECT_TRUE(text.starts_with("/usr/bin/mpirun: needs ")) << text;
  EXPECT_NE(text.find(" open files for 100000 ranks, and a process may open " +
                      std::to_string(low.rlim_cur) + " here"),
            std::string::npos)
      << text;
  options.hosts = {"a", "b:2"};
  EXPECT_NO_THROW(CheckOpenFiles(options));
  options.hosts = {"a", "b:100000"};
  EXPECT_THROW(CheckOpenFiles(options), Error);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace pipewright
