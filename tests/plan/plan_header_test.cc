#include "plan/plan_header.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {

namespace {

std::string HeaderError(const std::string& text) {
  Plan plan;
  int steps = 0;
  return ErrorOf([&] { ReadHeader(text, "plan.csv", plan, steps); });
}

}  // namespace

TEST(PlanHeader, ReadsWhatItWrites) {
  Plan plan;
  plan.shared = {{0, 3}, {1, 2}};
  plan.recompute = {1, 2};
  const std::string text = WriteHeader(plan, 4);
  EXPECT_EQ(text, "#steps 4\n#shared 0,3\n#shared 1,2\n#recompute 1,2\n");
  Plan read;
  int steps = 0;
  ReadHeader(text, "plan.csv", read, steps);
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(read.shared, plan.shared);
  EXPECT_EQ(read.recompute, plan.recompute);
}

TEST(PlanHeader, RemarksAndLineEndsStayWhileTheyAreTrue) {
  Plan plan;
  plan.layout.header = "# by hand\r\n#shared 0,1\r\n";
  plan.layout.crlf = true;
  plan.shared = {{0, 1}};
  EXPECT_EQ(WriteHeader(plan, 0), plan.layout.header);
  plan.shared = {{0, 2}};
  EXPECT_EQ(WriteHeader(plan, 0), "#shared 0,2\r\n");
}

TEST(PlanHeader, SizeCountsTheLeadingLinesOnly) {
  EXPECT_EQ(HeaderSize("#a\n# b\n0F0\n#c\n"), 7u);
  EXPECT_EQ(HeaderSize("0F0\n"), 0u);
  EXPECT_EQ(HeaderSize("#a"), 2u);
}

TEST(PlanHeader, MistakesNameTheLine) {
  EXPECT_TRUE(HeaderError("# remark\n#share 0,1\n").starts_with("plan.csv:2: "));
  EXPECT_NE(HeaderError("#share 0,1\n").find("did you mean \"shared\"?"), std::string::npos);
  EXPECT_NE(HeaderError("#shared 1,0\n"), "");
  EXPECT_NE(HeaderError("#shared 0,0\n"), "");
  EXPECT_NE(HeaderError("#shared 0,x\n"), "");
  EXPECT_NE(HeaderError("#steps 0\n"), "");
  EXPECT_NE(HeaderError("#steps 1,2\n"), "");
  EXPECT_EQ(HeaderError("# remark\n#steps 2\n"), "");
}

}  // namespace pipewright
