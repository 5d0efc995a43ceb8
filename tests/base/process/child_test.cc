// Runs other programs, and checks their output and how they end.
#include "base/process/child.h"

#include <gtest/gtest.h>

#include <csignal>

#include "base/files/read_file.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

TEST(Child, ReturnsWhatTheProgramPrints) {
  const ChildResult result = RunChild({"sh", "-c", "echo one; echo two >&2; exit 3"});
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.out, "one\n");
  EXPECT_EQ(result.err, "two\n");
}

// The child writes more than a pipe holds to both streams at once: neither may wait for the other
// to be read.
TEST(Child, ReadsBothPipesAtOnce) {
  const ChildResult result =
      RunChild({"sh", "-c", "head -c 300000 /dev/zero >&2; head -c 400000 /dev/zero"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out.size(), 400000u);
  EXPECT_EQ(result.err.size(), 300000u);
}

TEST(Child, TellsSignalsAndMissingPrograms) {
  EXPECT_EQ(RunChild({"sh", "-c", "kill -KILL $$"}).code, 128 + 9);
  const ChildResult missing = RunChild({"/no/such/program"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_EQ(missing.err, "/no/such/program: No such file or directory\n");
}

TEST(Child, IsEndedAtItsLimits) {
  const ChildResult late = RunChild({"sh", "-c", "echo begun; exec sleep 1000"}, {0.2});
  EXPECT_TRUE(late.ended);
  EXPECT_EQ(late.code, 128 + 15);
  EXPECT_EQ(late.out, "begun\n");
  volatile std::sig_atomic_t stop = 1;
  EXPECT_TRUE(RunChild({"sleep", "1000"}, {1e9, &stop}).ended);
  stop = 0;
  EXPECT_FALSE(RunChild({"true"}, {1e9, &stop}).ended);
}

// A program that ignores SIGTERM.
TEST(Child, IsKilledIfItDoesNotEnd) {
  const ChildResult result =
      RunChild({"sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"}, {0.1});
  EXPECT_EQ(result.code, 128 + 9);
}

TEST(Child, CountsItsTime) {
  const ChildResult result =
      RunChild({"sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"});
  EXPECT_GT(result.cpu_seconds, 0);
  EXPECT_LT(result.cpu_seconds, 600);
}

// Then the system does not keep how a program has ended.
TEST(Child, HasFailedWhereSigchldIsIgnored) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const ChildResult result = RunChild({"sh", "-c", "echo out; exit 3"});
  std::signal(SIGCHLD, before);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "out\n");
}

TEST(Child, HasNothingToRead) { EXPECT_EQ(RunChild({"cat"}).out, ""); }

TEST(Child, ReadsAFile) {
  const std::string path = TempPath("input");
  WriteFile(path, "one\ntwo\n");
  EXPECT_EQ(RunChild({"cat"}, {}, path).out, "one\ntwo\n");
}

}  // namespace
}  // namespace pipewright
