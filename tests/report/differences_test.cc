// Tests which differences between plans, confs and traces are found, and how they are worded.
#include "report/differences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string File(const std::string& name, const std::string& text) {
  std::ofstream(TempPath(name)) << text;
  return TempPath(name);
}

TEST(Differences, ListsTheFirstActionOfEachRankThatDiffers) {
  const std::string first = File("first", "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n");
  const std::string second = File("second", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const Differences found = FindDifferences(first, second);
  EXPECT_EQ(found.kind, "plan");
  ASSERT_EQ(found.list.size(), 1u);
  EXPECT_EQ(DifferencesText(found, "a", "b"), "rank 0, action 1: 0B0 and 0F1\n");
  EXPECT_EQ(DifferencesText(FindDifferences(first, first), "a", "b"), "the plans are the same\n");
  EXPECT_EQ(DifferencesJson(FindDifferences(first, first)),
            Json({{"kind", "plan"}, {"equal", true}, {"differences", Json::array()}}));
}

TEST(Differences, RefusesFilesOfTwoKinds) {
  const std::string plan = File("plan", "0F0,0B0\n");
  const std::string conf = File("conf",
                                "// stages\n{\"module_to_stage_map\": [0], "
                                "\"stage_to_rank_map\": {\"0\": [0]}}");
  EXPECT_EQ(FindDifferences(conf, conf).kind, "conf");
  try {
    FindDifferences(plan, conf);
    FAIL();
  } catch (const Error& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with(conf + ": it is a conf, and " + plan +
                                                  " is a plan"));
  }
  EXPECT_THROW(FindDifferences(plan, TempPath("missing")), Error);
}

TEST(Differences, WordsTheSidesAndLimitsTheText) {
  Differences three{"job", {{"a", "1", "2"}, {"b", "", "x"}, {"c", "y", ""}, {"d", "z", "z"}}};
  EXPECT_EQ(DifferencesText(three, "L", "R"),
            "a: 1 and 2\nonly in R: b: x\nonly in L: c: y\nd: z\n");
  EXPECT_EQ(DifferencesJson(three)["differences"][1],
            Json({{"where", "b"}, {"first", nullptr}, {"second", "x"}}));
  Differences many{"job", std::vector<Difference>(103, {"a", "1", "2"})};
  const std::string text = DifferencesText(many, "L", "R");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 101);
  EXPECT_TRUE(text.ends_with("a: 1 and 2\nand 3 more (--json has all)\n"));
}

}  // namespace
}  // namespace pipewright
