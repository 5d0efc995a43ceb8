#include "plan/partition/output_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "plan/error.h"
#include "plan/text.h"
#include "tests/temp_folder.h"

namespace pipewright {

static std::vector<std::string> Write(const std::string& folder, const OutputTexts& files,
                                      const std::vector<std::string>& read, bool force,
                                      const char* record = kCodegenRecord) {
  CheckOutputFolder(folder, record, files, read, force);
  return WriteOutputFolder(folder, record, files, Json::object());
}

static std::string Refused(const std::string& folder, const OutputTexts& files,
                           const std::vector<std::string>& read = {}) {
  try {
    Write(folder, files, read, false);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(OutputFolder, WhatItWroteItWritesAgain) {
  const std::string at = TempPath("again");
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "2"}, {"c.py", "3"}}), "");
  WriteFile(at + "/c.py", "edited");
  WriteFile(at + "/mine.py", "mine");
  // b.py is no longer part of it, and nobody edited it. c.py stays.
  EXPECT_EQ(Write(at, {{"a.py", "4"}}, {}, false),
            (std::vector<std::string>{at + "/c.py was written before and is no part of this: "
                                           "it was edited and stays"}));
  EXPECT_EQ(ReadFile(at + "/a.py"), "4");
  EXPECT_FALSE(std::filesystem::exists(at + "/b.py"));
  EXPECT_EQ(ReadFile(at + "/c.py"), "edited");
  EXPECT_EQ(ReadFile(at + "/mine.py"), "mine");
}

TEST(OutputFolder, WhatOthersWroteStays) {
  const std::string at = TempPath("others");
  std::filesystem::create_directories(at);
  WriteFile(at + "/b.py", "mine");
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "2"}}),
            at + "/b.py: is there already, and was not written here before\n  name another "
                 "folder, or write over it with --force");
  EXPECT_FALSE(std::filesystem::exists(at + "/a.py"));  // checked before anything is written
  EXPECT_EQ(ReadFile(at + "/b.py"), "mine");
  // The same text is no loss.
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "mine"}}), "");
  WriteFile(at + "/a.py", "edited");
  EXPECT_EQ(Refused(at, {{"a.py", "2"}, {"b.py", "mine"}}),
            at + "/a.py: was edited since it was written\n  name another folder, or write over it "
                 "with --force");
  Write(at, {{"a.py", "2"}}, {}, true);
  EXPECT_EQ(ReadFile(at + "/a.py"), "2");
  // A record that is none of ours.
  WriteFile(at + "/codegen.json", "[1]");
  EXPECT_NE(Refused(at, {{"a.py", "2"}}), "");
  EXPECT_EQ(ReadFile(at + "/codegen.json"), "[1]");
}

TEST(OutputFolder, OneCommandKnowsWhatTheOtherWrote) {
  const std::string at = TempPath("both");
  Write(at, {{"conf.json", "1"}, {"graph.txt", "g"}}, {}, false, kPartitionRecord);
  EXPECT_EQ(Refused(at, {{"conf.json", "2"}, {"a.py", "a"}}), "");
  EXPECT_EQ(ReadFile(at + "/graph.txt"), "g");  // no part of what codegen wrote
  Write(at, {{"conf.json", "3"}}, {}, false, kPartitionRecord);
  EXPECT_FALSE(std::filesystem::exists(at + "/graph.txt"));
  EXPECT_EQ(ReadFile(at + "/a.py"), "a");
  EXPECT_EQ(ReadFile(at + "/conf.json"), "3");
  WriteFile(at + "/conf.json", "");  // nothing to lose
  EXPECT_EQ(Refused(at, {{"conf.json", "4"}}), "");
}

TEST(OutputFolder, NeverWhatIsRead) {
  const std::string at = TempPath("read");
  std::filesystem::create_directories(at);
  WriteFile(at + "/a.py", "graph");
  EXPECT_THROW(Write(at, {{"a.py", "1"}}, {at + "/a.py"}, true), Error);
  EXPECT_EQ(ReadFile(at + "/a.py"), "graph");
  EXPECT_THROW(Write("", {{"a.py", "1"}}, {}, false), Error);
  EXPECT_THROW(Write(at + "/a.py", {{"a.py", "1"}}, {}, true), Error);
  // A record that names files elsewhere removes none.
  WriteFile(TempPath("elsewhere.py"), "x");
  WriteFile(at + "/codegen.json",
            "{\"written\": {\"../elsewhere.py\": \"" + HexHash("x") + "\", \"c.py\": \"0\"}}");
  EXPECT_EQ(Refused(at, {{"d.py", "1"}}), "");
  EXPECT_EQ(ReadFile(TempPath("elsewhere.py")), "x");
}

}  // namespace pipewright
