#include "plan/partition/code_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "plan/error.h"
#include "plan/text.h"
#include "tests/temp_folder.h"

namespace pipewright {

using Files = std::map<std::string, std::string>;

static std::string Refused(const std::string& folder, const Files& files,
                           const std::vector<std::string>& read = {}) {
  try {
    WriteCode(folder, files, read, false);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(CodeFolder, WhatItWroteItWritesAgain) {
  const std::string at = TempPath("again");
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "2"}, {"c.py", "3"}}), "");
  WriteFile(at + "/c.py", "edited");
  WriteFile(at + "/mine.py", "mine");
  // b.py is no longer part of it, and nobody edited it. c.py stays.
  EXPECT_EQ(WriteCode(at, {{"a.py", "4"}}, {}, false),
            (std::vector<std::string>{at + "/c.py was written before and is no part of this: "
                                           "somebody edited it, so it stays"}));
  EXPECT_EQ(ReadFile(at + "/a.py"), "4");
  EXPECT_FALSE(std::filesystem::exists(at + "/b.py"));
  EXPECT_EQ(ReadFile(at + "/c.py"), "edited");
  EXPECT_EQ(ReadFile(at + "/mine.py"), "mine");
}

TEST(CodeFolder, WhatOthersWroteStays) {
  const std::string at = TempPath("others");
  std::filesystem::create_directories(at);
  WriteFile(at + "/b.py", "mine");
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "2"}}),
            at + "/b.py: is there already, and codegen did not write it\n  choose another folder, "
                 "or replace it with --force");
  EXPECT_FALSE(std::filesystem::exists(at + "/a.py"));  // checked before anything is written
  EXPECT_EQ(ReadFile(at + "/b.py"), "mine");
  // The same text is no loss.
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "mine"}}), "");
  WriteFile(at + "/a.py", "edited");
  EXPECT_EQ(Refused(at, {{"a.py", "2"}, {"b.py", "mine"}}),
            at + "/a.py: somebody edited it since it was written\n  choose another folder, or "
                 "replace it with --force");
  WriteCode(at, {{"a.py", "2"}}, {}, true);
  EXPECT_EQ(ReadFile(at + "/a.py"), "2");
  // A record that is none of ours.
  WriteFile(at + "/codegen.json", "[1]");
  EXPECT_NE(Refused(at, {{"a.py", "2"}}), "");
  EXPECT_EQ(ReadFile(at + "/codegen.json"), "[1]");
}

TEST(CodeFolder, NeverWhatIsRead) {
  const std::string at = TempPath("read");
  std::filesystem::create_directories(at);
  WriteFile(at + "/a.py", "graph");
  EXPECT_THROW(WriteCode(at, {{"a.py", "1"}}, {at + "/a.py"}, true), Error);
  EXPECT_EQ(ReadFile(at + "/a.py"), "graph");
  EXPECT_THROW(WriteCode("", {{"a.py", "1"}}, {}, false), Error);
  EXPECT_THROW(WriteCode(at + "/a.py", {{"a.py", "1"}}, {}, true), Error);
  // A record that names files elsewhere removes none.
  WriteFile(TempPath("elsewhere.py"), "x");
  WriteFile(at + "/codegen.json",
            "{\"files\": {\"../elsewhere.py\": \"" + HexHash("x") + "\", \"c.py\": \"0\"}}");
  EXPECT_EQ(Refused(at, {{"d.py", "1"}}), "");
  EXPECT_EQ(ReadFile(TempPath("elsewhere.py")), "x");
}

}  // namespace pipewright
