// Tests exit codes and output of a program whose commands are replaced.
#include "cli/program.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "base/process/messages.h"
#include "cli/commands.h"
#include "tests/environment.h"

namespace pipewright {
namespace {

// Outside of mpirun, even if the tests run under it.
class RunProgramTest : public testing::Test {
  Environment alone_{kNoLauncher};
};

struct Ran {
  int code = -1;
  std::string out, err;
};

Ran RunLine(std::vector<std::string> words, AddCommand plan) {
  words.insert(words.begin(), "pipewright");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Ran ran;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ran.code = RunProgram("pipewright", "about it", {{"plan", plan}}, static_cast<int>(words.size()),
                        argv.data());
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  SetColor(Color::kAuto);
  return ran;
}

// The command throws what its argument names.
void Throw(CLI::App& app) {
  auto what = std::make_shared<std::string>();
  app.add_option("what", *what, "the exception");
  app.callback([what] {
    if (*what == "usage") throw UsageError("--x", "is wrong");
    if (*what == "error") throw Error("a.json", "no such key");
    if (*what == "memory") throw std::bad_alloc();
    if (*what == "code") throw CLI::RuntimeError(7);
    std::cout << "done\n";
  });
}

TEST_F(RunProgramTest, TurnsExceptionsIntoExitCodes) {
  EXPECT_EQ(RunLine({"plan"}, Throw).code, kSuccess);
  EXPECT_EQ(RunLine({"plan"}, Throw).out, "done\n");
  const Ran usage = RunLine({"plan", "usage"}, Throw);
  EXPECT_EQ(usage.code, kUsage);
  EXPECT_EQ(usage.err, "pipewright: --x: is wrong\n");
  const Ran error = RunLine({"--color", "never", "plan", "error"}, Throw);
  EXPECT_EQ(error.code, kFailure);
  EXPECT_EQ(error.err, "pipewright: a.json: no such key\n");
  const Ran colored = RunLine({"plan", "error", "--color", "always"}, Throw);
  EXPECT_EQ(colored.err, "\033[1;31mpipewright\033[0m: a.json: no such key\n");
  EXPECT_EQ(RunLine({"plan", "memory"}, Throw).err,
            "pipewright: there is not enough memory for this\n");
  EXPECT_EQ(RunLine({"plan", "code"}, Throw).code, 7);
  EXPECT_EQ(RunLine({"plan", "code"}, Throw).err, "");
}

// A parent that ignores SIGCHLD hands that down.
TEST_F(RunProgramTest, SeesHowItsChildrenEnd) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(RunLine({"plan"}, Throw).code, kSuccess);
  EXPECT_TRUE(std::signal(SIGCHLD, before) == SIG_DFL);
}

TEST_F(RunProgramTest, KnowsTheCommandsOfBothPrograms) {
  EXPECT_EQ(RunLine({"train"}, Throw).err,
            "pipewright: unknown command \"train\"\n  did you mean \"pipewright-run train\"?\n");
  EXPECT_EQ(RunLine({"compile"}, Throw).err,
            "pipewright: compile needs LibTorch, and this pipewright was built without it\n");
  EXPECT_EQ(RunLine({"compile"}, Throw).code, kUsage);
  EXPECT_EQ(RunLine({"--version"}, Throw).out, "pipewright " PIPEWRIGHT_VERSION "\n");
  const Ran help = RunLine({"help", "plan"}, Throw), missing = RunLine({"help", "paln"}, Throw);
  EXPECT_NE(help.out.find("the exception"), std::string::npos) << help.out;
  EXPECT_EQ(missing.err, "pipewright: help: there is no command \"paln\"\n");
  EXPECT_EQ(missing.code, kUsage);
}

TEST_F(RunProgramTest, OnlyTheFirstRankReportsAWrongCommandLine) {
  Environment first(Environment::Variables{{"SLURM_PROCID", "0"}});
  EXPECT_EQ(RunLine({"plan", "usage"}, Throw).err, "pipewright: --x: is wrong\n");
  Environment second(Environment::Variables{{"SLURM_PROCID", "1"}});
  const Ran other = RunLine({"plan", "usage"}, Throw);
  EXPECT_EQ(other.err, "");
  EXPECT_EQ(other.code, kUsage);
}

TEST(Commands, AreDistinctAndDescribed) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const Command& command : Commands()) {
    EXPECT_TRUE(seen.insert({command.program, command.name}).second) << command.name;
    EXPECT_FALSE(command.description.empty() || command.description.ends_with("."));
    EXPECT_TRUE(command.example.empty() ||
                command.example.find(command.program + " ") != std::string::npos)
        << command.example;
  }
  EXPECT_TRUE(seen.count({"pipewright", "help"}));
  EXPECT_TRUE(seen.count({"pipewright-run", "help"}));
}

}  // namespace
}  // namespace pipewright
