// Checks which output files a command may replace.
#include "base/files/overwrite.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

// Returns the error of replacing `path` by a command that knows the text "mine"; "" if it may.
std::string Refusal(const std::string& path) {
  return ErrorOf([&] {
    CheckOverwrite(path, "already exists, and is not mine", "name another file",
                   [](const std::string& text) { return text == "mine"; });
  });
}

TEST(Overwrite, OwnAndEmptyFilesAreReplaced) {
  const std::string path = TempPath("output.txt");
  EXPECT_EQ(Refusal(path), "") << "nothing is there";
  WriteFile(path, "");
  EXPECT_EQ(Refusal(path), "") << "nothing is lost with an empty file";
  WriteFile(path, "mine");
  EXPECT_EQ(Refusal(path), "");
  EXPECT_EQ(Refusal("/dev/stdout"), "");
}

TEST(Overwrite, AnythingElseStays) {
  const std::string wanted = ": already exists, and is not mine\n  name another file";
  const std::string path = TempPath("edited.txt"), link = TempPath("link.txt");
  WriteFile(path, "mine, edited");
  EXPECT_EQ(Refusal(path), path + wanted);
  std::filesystem::create_symlink(path, link);
  EXPECT_EQ(Refusal(link), link + wanted);
  std::filesystem::remove(path);
  EXPECT_EQ(Refusal(link), "") << "a link to a file that is not there yet";
  std::filesystem::create_directory(path);
  EXPECT_EQ(Refusal(path), path + wanted);
}

}  // namespace
}  // namespace pipewright
