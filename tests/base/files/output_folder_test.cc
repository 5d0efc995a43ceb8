#include "base/files/output_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

static std::vector<std::string> Write(const std::string& folder, const OutputTexts& files,
                                      const std::vector<std::string>& read, bool force,
                                      const char* record = kCodegenRecord) {
  CheckOutputFolder(folder, record, files, read, force);
  return WriteOutputFolder(folder, record, files, Json::object(), read);
}

static std::string Refused(const std::string& folder, const OutputTexts& files,
                           const std::vector<std::string>& read = {}) {
  return ErrorOf([&] { Write(folder, files, read, false); });
}

TEST(OutputFolder, ReplacesItsOwnFiles) {
  const std::string at = TempPath("again");
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "2"}, {"c.py", "3"}}), "");
  WriteFile(at + "/c.py", "edited");
  WriteFile(at + "/mine.py", "mine");
  // b.py is no longer part of it, and nobody edited it. c.py stays.
  EXPECT_EQ(Write(at, {{"a.py", "4"}}, {}, false),
            (std::vector<std::string>{at + "/c.py was written before, but is not part of this "
                                           "output. It is kept because it was edited"}));
  EXPECT_EQ(ReadFile(at + "/a.py"), "4");
  EXPECT_FALSE(std::filesystem::exists(at + "/b.py"));
  EXPECT_EQ(ReadFile(at + "/c.py"), "edited");
  EXPECT_EQ(ReadFile(at + "/mine.py"), "mine");
}

TEST(OutputFolder, ReplacesItsOwnFilesBesideAnyRecord) {
  const std::string at = TempPath("record");
  Write(at, {{"a.py", "1"}, {"b.py", "2"}}, {}, false, "report.json");
  Write(at, {{"a.py", "3"}, {"b.py", "4"}}, {}, false, "report.json");
  EXPECT_EQ(ReadFile(at + "/a.py"), "3");
  WriteFile(at + "/b.py", "edited");
  EXPECT_EQ(ErrorOf([&] { Write(at, {{"b.py", "5"}}, {}, false, "report.json"); }),
            at + "/b.py: was edited since it was written\n  name another folder, or replace it "
                 "with --force");
}

TEST(OutputFolder, KeepsFilesOfOthers) {
  const std::string at = TempPath("others");
  std::filesystem::create_directories(at);
  WriteFile(at + "/b.py", "mine");
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "2"}}),
            at + "/b.py: already exists, and was not written here before\n  name another "
                 "folder, or replace it with --force");
  EXPECT_FALSE(std::filesystem::exists(at + "/a.py"));  // checked before anything is written
  EXPECT_EQ(ReadFile(at + "/b.py"), "mine");
  // Nothing is lost if the text is the same.
  EXPECT_EQ(Refused(at, {{"a.py", "1"}, {"b.py", "mine"}}), "");
  WriteFile(at + "/a.py", "edited");
  EXPECT_EQ(Refused(at, {{"a.py", "2"}, {"b.py", "mine"}}),
            at + "/a.py: was edited since it was written\n  name another folder, or replace it "
                 "with --force");
  Write(at, {{"a.py", "2"}}, {}, true);
  EXPECT_EQ(ReadFile(at + "/a.py"), "2");
  // A record that no command wrote.
  WriteFile(at + "/codegen.json", "[1]");
  EXPECT_NE(Refused(at, {{"a.py", "2"}}), "");
  EXPECT_EQ(ReadFile(at + "/codegen.json"), "[1]");
}

TEST(OutputFolder, OneCommandKnowsWhatTheOtherWrote) {
  const std::string at = TempPath("both");
  Write(at, {{"conf.json", "1"}, {"graph.txt", "g"}}, {}, false, kPartitionRecord);
  EXPECT_EQ(Refused(at, {{"conf.json", "2"}, {"a.py", "a"}}), "");
  EXPECT_EQ(ReadFile(at + "/graph.txt"), "g");  // codegen did not write it
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
  // Files that are read are not removed either.
  Write(at, {{"b.py", "2"}}, {}, false);
  EXPECT_EQ(Write(at, {{"c.py", "3"}}, {at + "/b.py"}, false).size(), 1u);
  EXPECT_EQ(ReadFile(at + "/b.py"), "2");
}

TEST(OutputFolder, OthersRecordsAreNotBelieved) {
  const std::string at = TempPath("records");
  for (const char* text : {"{\"written\": {\"by\": \"me\"}, \"results\": [1]}", "[1]", "x",
                           "{\"written\": {\"../elsewhere.py\": [\"0\"], \"\": [\"x\"]}}"}) {
    std::filesystem::create_directories(at);
    WriteFile(at + "/codegen.json", text);
    EXPECT_NE(Refused(at, {{"a.py", "1"}}), "") << text;
    EXPECT_EQ(ReadFile(at + "/codegen.json"), text);
    std::filesystem::remove_all(at);
  }
  // A key that somebody added to our record.
  Write(at, {{"a.py", "1"}}, {}, false);
  Json record = ReadJson(at + "/codegen.json");
  record["note"] = "mine";
  WriteFile(at + "/codegen.json", record.dump());
  EXPECT_NE(Refused(at, {{"a.py", "1"}}), "");
}

TEST(OutputFolder, RepeatsWhatWasInterrupted) {
  const std::string at = TempPath("interrupted");
  Write(at, {{"a.py", "1"}, {"b.py", "2"}}, {}, false);
  // The second file cannot be written: its temporary name is too long.
  const std::string longest(250, 'z');
  EXPECT_THROW(Write(at, {{"a.py", "3"}, {longest, "4"}}, {}, false), Error);
  EXPECT_EQ(ReadFile(at + "/a.py"), "3");
  EXPECT_EQ(Refused(at, {{"a.py", "5"}, {"b.py", "6"}}), "");
  EXPECT_EQ(ReadFile(at + "/b.py"), "6");
}

TEST(OutputFolder, ChangesWhatItWrote) {
  const std::string at = TempPath("changed");
  Write(at, {{"a.py", "1"}, {"b.py", "2"}}, {}, false);
  WriteRecord(at, kCodegenRecord, ReadJson(at + "/" + kCodegenRecord), {{"a.py", "3"}});
  EXPECT_EQ(ReadFile(at + "/a.py"), "3");
  EXPECT_EQ(Refused(at, {{"a.py", "4"}, {"b.py", "4"}}), "") << "as if written at once";
  WriteFile(at + "/a.py", "edited");
  EXPECT_NE(Refused(at, {{"a.py", "5"}}), "");
}

TEST(OutputFolder, RefusesWhatIsNotAFile) {
  const std::string at = TempPath("kinds");
  std::filesystem::create_directories(at + "/a.py");
  EXPECT_NE(Refused(at, {{"a.py", "1"}}).find("is not a plain file"), std::string::npos);
  EXPECT_THROW(CheckOutputFolder(at, kCodegenRecord, {{"a.py", "1"}}, {}, true), Error);
  ASSERT_EQ(mkfifo((at + "/b.py").c_str(), 0600), 0);
  EXPECT_NE(Refused(at, {{"b.py", "1"}}).find("is not a plain file"), std::string::npos);
  // A folder in place of a file that is no longer written stays, with a note.
  Write(at, {{"c.py", "1"}, {"d.py", "2"}}, {}, false);
  std::filesystem::remove(at + "/c.py");
  std::filesystem::create_directories(at + "/c.py");
  EXPECT_EQ(Write(at, {{"d.py", "3"}}, {}, false).size(), 1u);
  std::filesystem::create_symlink("nowhere", at + "/e.py");
  EXPECT_NE(Refused(at, {{"e.py", "1"}}), "");
}

}  // namespace pipewright
