#include "plan/partition/pipedream/codegen/template_text.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipewright {
namespace {

std::string Fill(const std::string& text, const std::map<std::string, std::string>& values = {},
                 const std::vector<std::string>& needed = {}) {
  return FillTemplate(text, values, "t.py", needed);
}

std::string Refused(const std::string& text, const std::vector<std::string>& needed = {}) {
  try {
    return "filled: " + Fill(text, {{"name", "Net"}, {"stages", "2"}}, needed);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(TemplateText, ReplacesNamesByTheirValues) {
  EXPECT_EQ(Fill("class %(name)s(%(base)s):\n", {{"name", "Net"}, {"base", "Module"}}),
            "class Net(Module):\n");
  EXPECT_EQ(Fill("%(a)s%(a)s\n", {{"a", "x"}}), "xx\n");
}

// A value is not a template itself.
TEST(TemplateText, KeepsPercentSigns) {
  EXPECT_EQ(Fill("100%% of %(a)s\n", {{"a", "%(b)s 5%"}}), "100% of %(b)s 5%\n");
  EXPECT_EQ(Fill("%%(a)s\n", {{"a", "x"}}), "%(a)s\n");
}

TEST(TemplateText, LeavesFewEmptyLines) {
  EXPECT_EQ(Fill("a\n\n\n\n\nb\n"), "a\n\n\nb\n");
  EXPECT_EQ(Fill("class A:\n  x\n\n\n\n  y\n"), "class A:\n  x\n\n  y\n");
  EXPECT_EQ(Fill("  x\n  %(none)s\n  y\n", {{"none", ""}}), "  x\n\n  y\n");
  EXPECT_EQ(Fill("x  \ny\n\n\n"), "x\ny\n");
  EXPECT_EQ(Fill(""), "");
}

TEST(TemplateText, SaysWhatIsWrong) {
  EXPECT_EQ(Refused("a\n", {"name"}).substr(0, 23), "t.py: it lacks %(name)s");
  EXPECT_EQ(Refused("%(nam)s").substr(0, 25), "t.py: there is no %(nam)s");
  EXPECT_NE(Refused("%(nam)s").find("known here: name, stages"), std::string::npos);
  for (const char* text : {"50 %", "%d", "%(name", "%s(name)s"})
    EXPECT_EQ(Refused(text).substr(0, 34), "t.py: a % that begins no %(name)s\n") << text;
}

}  // namespace
}  // namespace pipewright
