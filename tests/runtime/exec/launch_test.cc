// Runs whole jobs under mpirun, and checks what remains when a rank fails.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/runtime/exec/launch.h"

namespace pipewright {
namespace {

Ended Program(const std::string& mode) { return Launch(3, MPI_PROGRAM " \"" + mode + "\""); }

TEST(Launch, EndsWell) {
  Ended ended = Program("");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.output, "");
}

TEST(Launch, AnExceptionEndsEveryRank) {
  Ended ended = Program("throw");
  EXPECT_EQ(ended.code, 1);
  EXPECT_TRUE(Soon(ended.seconds, 10)) << ended.seconds;
  EXPECT_EQ(ended.Count("program: rank 1, stage 1, microbatch 2, action 1B2: out of luck\n"), 1)
      << ended.output;
  EXPECT_EQ(ended.Count("out of luck"), 1) << ended.output;
}

TEST(Launch, AnErrorOfAllRanksIsShownOnce) {
  Ended ended = Program("all throw");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.Count("program: no such file\n"), 1) << ended.output;
}

TEST(Launch, AnErrorOfTheCommandLineHasItsExitCode) {
  Ended ended = Program("usage");
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.Count("program: no such option\n"), 1) << ended.output;
}

TEST(Launch, AVoteEndsEveryRankWithoutAbort) {
  for (auto [mode, text] :
       {std::pair("vote", "program: loading on rank 2: torn\n"),
        std::pair("vote late", "program: saving on rank 0: disk full\n"),
        std::pair("vote with transfers", "program: saving on every rank: disk full\n")}) {
    Ended ended = Program(mode);
    EXPECT_EQ(ended.code, 1) << mode;
    EXPECT_TRUE(Soon(ended.seconds, 10)) << ended.seconds;
    EXPECT_EQ(ended.Count(text), 1) << ended.output;
    EXPECT_EQ(ended.Count("program: "), 1) << ended.output;
    EXPECT_EQ(ended.Count("MPI_ABORT"), 0) << ended.output;
  }
}

TEST(Launch, ARankThatDiesEndsTheOthers) {
  for (const char* mode : {"exit", "kill", "segfault"}) {
    Ended ended = Program(mode);
    EXPECT_NE(ended.code, 0) << mode;
    EXPECT_TRUE(Soon(ended.seconds, 10)) << mode << ", " << ended.seconds;
  }
}

TEST(Launch, AFailedAssertionOnOneRankEndsEveryRank) {
  Ended ended = Launch(3, MPI_TESTS " --gtest_also_run_disabled_tests --gtest_filter=*FailsOnOne*");
  EXPECT_NE(ended.code, 0);
  EXPECT_TRUE(Soon(ended.seconds, 10)) << ended.seconds;
  EXPECT_EQ(ended.Count("rank 2: "), 1) << ended.output;
}

TEST(Launch, AQuietAbortEndsEveryRankWithoutABanner) {
  Ended ended = Launch(3, MPI_TESTS " --gtest_also_run_disabled_tests --gtest_filter=AbortQuietly.*"
                                    "EndsEveryRank");
  EXPECT_EQ(ended.code, 7) << ended.output;
  EXPECT_EQ(ended.Count("MPI_ABORT"), 0) << ended.output;
  EXPECT_EQ(ended.Count("AbortQuietly returned"), 0) << ended.output;
}

TEST(Launch, ManyStepsLeaveNothingBehind) {
  const bool many = std::getenv("PIPEWRIGHT_LONG");
  // Five ranks that poll, on one or two cores: this takes seconds on an idle machine, and more than
  // a minute beside ten other processes.
  Ended ended = Launch(5, MPI_PROGRAM " \"soak " + std::string(many ? "2000" : "100") + "\"", "",
                       /*limit=*/many ? 6000 : 1200);
  EXPECT_EQ(ended.code, 0) << ended.output;
}

TEST(Launch, OneRankNeedsNoMpirun) {
  FILE* pipe = popen(MPI_TESTS " --gtest_filter=MpiExecutor.* 2>&1", "r");
  std::string output;
  char buffer[4096];
  while (size_t bytes = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, bytes);
  EXPECT_EQ(pclose(pipe), 0) << output;
}

}  // namespace
}  // namespace pipewright
