// Temporary folders.
#include "base/files/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

TEST(TemporaryFolder, TakesNoNameThatIsThereAndLeavesNothing) {
  const std::string parent = TempPath("parent");
  fs::create_directories(parent);
  std::string path;
  {
    const TemporaryFolder first(parent, "work-"), second(parent, "work-");
    path = first.path();
    EXPECT_NE(path, second.path());
    EXPECT_TRUE(path.starts_with(parent + "/work-"));
    fs::create_directories(path + "/deep");
    WriteFile(path + "/deep/file", "text");
  }
  EXPECT_TRUE(fs::is_empty(parent));
}

TEST(TemporaryFolder, NamesTheFolderInWhichItCannotBeMade) {
  const std::string parent = TempPath("none");
  EXPECT_EQ(ErrorOf([&] { const TemporaryFolder folder(parent, "work-"); }),
            parent + ": a folder cannot be made in it: No such file or directory");
}

}  // namespace
}  // namespace pipewright
