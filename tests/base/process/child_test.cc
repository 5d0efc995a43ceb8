// Runs other programs, and checks their output and how they end.
#include "base/process/child.h"

#include <gtest/gtest.h>

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

TEST(Child, HasNothingToRead) { EXPECT_EQ(RunChild({"cat"}).out, ""); }

}  // namespace
}  // namespace pipewright
