// Starts ranks as threads, as `pipewright-run --in-process N` does.
#include "cli/run/launch.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/exec/phase.h"
#include "tests/environment.h"
#include "tests/error_text.h"

namespace pipewright {
namespace {

constexpr char kSize[] = "OMPI_COMM_WORLD_SIZE";

// Restores the handlers of the signals that RunRanks catches.
class Handlers {
 public:
  Handlers() {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, nullptr, &old_[signal]);
  }
  Handlers(const Handlers&) = delete;
  ~Handlers() {
    for (const auto& [signal, old] : old_) sigaction(signal, &old, nullptr);
  }

 private:
  std::map<int, struct sigaction> old_;
};

// Runs `work` on 3 ranks. Returns the options that the ranks saw.
RunOptions Launch(const std::function<void(Transport&)>& work, RunOptions options = {}) {
  const Handlers restored;
  CLI::App app;
  AddLaunchOptions(app);
  app.parse(std::vector<std::string>{"3", "--in-process"});  // CLI11 takes them in reverse
  RunRanks(options, {}, work);
  return options;
}

TEST(RunRanks, RunsEveryRankAsAThread) {
  const Environment alone(Environment::Variables{{kSize, nullptr}, {"OMP_NUM_THREADS", nullptr}});
  std::mutex guard;
  std::set<int> ranks;
  const RunOptions options = Launch([&](Transport& transport) {
    EXPECT_EQ(transport.size(), 3);
    const std::lock_guard lock(guard);
    ranks.insert(transport.rank());
  });
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(options.threads, 1) << "each rank would use all cores";
}

TEST(RunRanks, ThreadsThatAreGivenStay) {
  RunOptions given;
  given.threads = 2;
  EXPECT_EQ(Launch([](Transport&) {}, given).threads, 2);
  const Environment set(Environment::Variables{{kSize, nullptr}, {"OMP_NUM_THREADS", "4"}});
  EXPECT_EQ(Launch([](Transport&) {}).threads, 0) << "LibTorch reads the variable";
}

TEST(RunRanks, AnErrorOfOneRankEndsAllAndShowsOnce) {
  const Environment alone(Environment::Variables{{kSize, nullptr}});
  testing::internal::CaptureStderr();
  int code = 0;
  try {
    Launch([](Transport& transport) {
      Phase(transport, "reading", [&] {
        if (transport.rank() == 1) throw Error("a.json", "is damaged", "write it again");
      });
    });
  } catch (const CLI::RuntimeError& e) {
    code = e.get_exit_code();
  }
  EXPECT_EQ(code, kFailure);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "pipewright-run: reading on rank 1: a.json: is damaged\n  write it again\n");
}

TEST(RunRanks, ThreadsUnderMpirunAreRefused) {
  const Environment launched(Environment::Variables{{kSize, "2"}});
  EXPECT_EQ(ErrorOf<UsageError>([] { Launch([](Transport&) {}); }),
            "--in-process: mpirun started 2 processes, and each would run every rank\n  start "
            "pipewright-run without mpirun, or leave out --in-process");
  const Environment one(Environment::Variables{{kSize, "1"}});
  EXPECT_EQ(ErrorOf<UsageError>([] { Launch([](Transport&) {}); }), "");
}

}  // namespace
}  // namespace pipewright
