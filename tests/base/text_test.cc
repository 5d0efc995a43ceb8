#include "base/text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/missing_file.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/shell_word.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

TEST(Text, SuggestsTheNearestWord) {
  EXPECT_EQ(Suggest("shedule", {"schedule", "steps", "seed"}), " (did you mean \"schedule\"?)");
  EXPECT_EQ(Suggest("bkl", {"blk", "head"}), " (did you mean \"blk\"?)");
  EXPECT_EQ(Suggest("zebra", {"schedule", "steps"}), "");
}

TEST(Text, SplitIsTheInverseOfJoin) {
  EXPECT_EQ(Join(Split("a,,b,", ','), ","), "a,,b,");
  EXPECT_EQ(Split("", ',').size(), 1u);
}

TEST(Text, ShellWords) {
  EXPECT_EQ(ShellWord("a:2,b/c-d_e.json"), "a:2,b/c-d_e.json");
  EXPECT_EQ(ShellWord(""), "''");
  EXPECT_EQ(ShellWord("mpirun --x $y"), "'mpirun --x $y'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
}

TEST(Text, WriteFileReplacesAndReadFileReads) {
  std::string path = testing::TempDir() + "/text_test.txt";
  WriteFile(path, "one");
  WriteFile(path, "two\n");
  EXPECT_EQ(ReadFile(path), "two\n");
  EXPECT_THROW(ReadFile(path + ".absent"), Error);
}

TEST(Text, WriteFileLeavesDevicesAlone) {
  std::string path = testing::TempDir() + "/text_test_pipe";
  std::remove(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  WriteFile(path, "one");
  char got[8] = {};
  EXPECT_EQ(read(reader, got, sizeof got), 3);
  close(reader);
  std::remove(path.c_str());
  EXPECT_STREQ(got, "one");
}

static std::string JsonError(const std::string& text) {
  return ErrorOf([&] { ParseJson(text, "job.json"); });
}

TEST(Json, ErrorsNameLineAndColumn) {
  EXPECT_EQ(JsonError("{\n  \"a\": 1,\n}").substr(0, 22), "job.json:3:1: not JSON");
  EXPECT_EQ(JsonError("{\"a\": 1, \"a\": 2}"), "job.json:1:10: the key \"a\" appears twice");
  EXPECT_EQ(JsonError("{\"lr\": 1e999}"), "job.json:1:8: 1e999 is too large a number");
  EXPECT_TRUE(IsUtf8(JsonError("\xff\xfe")));
  EXPECT_EQ(JsonError("{\"lr\": -Infinity}"),
            "job.json:1:8: -Infinity is not a JSON number: write a finite one");
  EXPECT_EQ(JsonError(std::string(1000, '[') + std::string(1000, ']')), "");
  EXPECT_EQ(JsonError(std::string(100000, '[')), "job.json: nested deeper than 1000 levels");
  const std::string deep = std::string(999, '[') + "{\"a\": 1}" + std::string(999, ']');
  EXPECT_EQ(JsonError(deep), "");
  EXPECT_EQ(JsonError("[" + deep + "]"), "job.json: nested deeper than 1000 levels");
}

// With quadratic time, this would take ten minutes.
TEST(Json, LongListsOfObjectsTakeLinearTime) {
  std::string text = "[{}";
  for (int i = 1; i < 1'000'000; ++i) text += ",{}";
  EXPECT_EQ(ParseJson(text + "]", "trace.json").size(), 1'000'000u);
}

TEST(MissingFile, SaysWhichPartIsMissingAndWhatIsThere) {
  const std::string folder = TempPath("missing");
  for (const char* name : {"small.pkg", "layer10.bin", "model.pt2"})
    std::filesystem::create_directories(folder + "/" + name);
  auto cure = [&](const std::string& path) {
    try {
      ReadFile(folder + "/" + path);
    } catch (const Error& e) {
      const std::string text = e.what();
      const size_t line = text.find("\n  ");
      EXPECT_NE(text.find("cannot be read: No such file"), std::string::npos) << text;
      return line == std::string::npos ? "" : text.substr(line + 3);
    }
    return std::string("read");
  };
  EXPECT_EQ(cure("smal.pkg/manifest.json"),
            "there is no " + folder + "/smal.pkg (did you mean \"small.pkg\"?)");
  EXPECT_EQ(cure("samll.pkg/"),
            "there is no " + folder + "/samll.pkg (did you mean \"small.pkg\"?)");
  EXPECT_EQ(cure("zebra/manifest.json"), "there is no " + folder + "/zebra");
  EXPECT_EQ(cure("zebra"), "");
  EXPECT_EQ(cure("layer11.bin"), "") << "another layer";
  EXPECT_EQ(cure("model.pt"),
            "there is no " + folder + "/model.pt (did you mean \"model.pt2\"?)");
}

TEST(MissingFile, OfAPackage) {
  const std::string folder = TempPath("whole.pkg");
  std::filesystem::create_directories(folder + "/modules");
  EXPECT_EQ(PackageFile(folder, "modules"), folder + "/modules");
  try {
    PackageFile(folder, "weights/module1.safetensors");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), folder + "/weights/module1.safetensors: is missing from the package\n"
                                 "  copy the whole folder again, or compile the model again");
  }
}

TEST(Json, KeysThatOtherProgramsHave) {
  auto told = [](const char* key, const std::vector<std::string>& known) -> std::string {
    const std::string text = ErrorOf([&] { CheckKeys(Json{{key, 1}}, known, "job.json"); });
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(told("learning_rate", {"type", "lr"}),
            "job.json: unknown key \"learning_rate\" (did you mean \"lr\"?)");
  EXPECT_EQ(told("lr", {"optimizer", "steps"}),
            "job.json: unknown key \"lr\" (did you mean \"optimizer.lr\"?)");
  EXPECT_EQ(told("learning_rate", {"stages"}), "job.json: unknown key \"learning_rate\"");
}

TEST(Json, PositionsOfValues) {
  std::string text = "{\n  \"a\": [1, {\"b \\\"]\": true}],\n  \"c\": {\"d\": -2.5}\n}";
  EXPECT_EQ(JsonPosition(text, {"a"}), "2:8");
  EXPECT_EQ(JsonPosition(text, {"a", "1", "b \"]"}), "2:22");
  EXPECT_EQ(JsonPosition(text, {"c", "d"}), "3:14");
  EXPECT_EQ(JsonPosition(text, {"c", "absent"}), "3:8");
  EXPECT_EQ(JsonPosition(text, {}), "1:1");
}

TEST(Json, UnknownKeysGetASuggestion) {
  try {
    CheckKeys(Json{{"shedule", 1}}, {"schedule", "steps"}, "job.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "job.json: unknown key \"shedule\" (did you mean \"schedule\"?)");
  }
}

TEST(Json, UnknownKeysThatAreLikeNoneGetAllSorted) {
  try {
    CheckKeys(Json{{"colour", 1}}, {"steps", "schedule"}, "job.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "job.json: unknown key \"colour\"\n  known here: schedule, steps");
  }
}

}  // namespace pipewright
