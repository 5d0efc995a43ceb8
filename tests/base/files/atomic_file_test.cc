#include "base/files/atomic_file.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>

#include "base/error.h"
#include "base/files/read_file.h"
#include "formats/package/package_files.h"
#include "tests/temp_folder.h"

namespace pipewright {

TEST(AtomicFile, HoldsWhatWasWrittenHoweverItWasCut) {
  constexpr size_t kBlock = 2 << 20;
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const std::string path = TempPath("atomic");
    std::string all;
    {
      AtomicFile file(path);
      for (int i = random() % 6; i-- > 0;) {
        const size_t near[] = {random() % 40, kBlock - random() % 3, kBlock + random() % 3,
                               2 * kBlock - all.size() % kBlock, random() % (5 * kBlock)};
        std::string piece(near[random() % 5], '\0');
        for (char& c : piece) c = static_cast<char>(random());
        file.Write(piece);
        all += piece;
      }
      file.Commit();
    }
    ASSERT_TRUE(ReadFile(path) == all) << "round " << round << ", " << all.size() << " bytes";
  }
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const std::string path = TempPath("folder/atomic");
  CreateFolders(TempPath("folder"));
  WriteFile(path, "before");
  {
    AtomicFile file(path);
    file.Write(std::string(5 << 20, 'x'));
  }
  EXPECT_EQ(ReadFile(path), "before");
  const std::filesystem::directory_iterator files(TempPath("folder")), end;
  EXPECT_EQ(std::distance(files, end), 1);
}

TEST(AtomicFile, WritesTheFileThatALinkNames) {
  namespace fs = std::filesystem;
  const std::string folder = TempPath("links"), file = folder + "/real/file";
  CreateFolders(folder + "/real");
  WriteFile(file, "before");
  fs::create_symlink("real/file", folder + "/link");
  fs::create_symlink(fs::absolute(folder) / "link", folder + "/second");
  fs::create_symlink("real/later", folder + "/dangling");
  for (const char* name : {"link", "second", "dangling"}) {
    const std::string path = folder + "/" + name;
    WriteFile(path, name);
    EXPECT_TRUE(fs::is_symlink(path));
    EXPECT_EQ(ReadFile(path), name);
  }
  EXPECT_EQ(ReadFile(file), "second");
  EXPECT_EQ(ReadFile(folder + "/real/later"), "dangling");
  fs::create_symlink("nowhere/file", folder + "/lost");
  EXPECT_THROW(CheckWritable(folder + "/lost"), Error);
}

// A file that this process has open is written in place, and keeps its name.
TEST(AtomicFile, GoesOnWithWhatIsOpen) {
  const std::string path = TempPath("open");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
  ASSERT_EQ(write(fd, "first ", 6), 6);
  const std::string name = "/dev/fd/" + std::to_string(fd);
  CheckWritable(name);
  WriteFile(name, "second");
  close(fd);
  EXPECT_EQ(ReadFile(path), "first second");
  EXPECT_THROW(CheckWritable(name), Error);
}

// Returns true if CheckWritable accepts a path from a user who owns nothing: root may write
// everywhere.
static bool Takes(const std::string& path, bool in_place = false) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(2);
    try {
      CheckWritable(path, {}, in_place);
    } catch (const Error&) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_NE(WEXITSTATUS(status), 2);
  return status == 0;
}

TEST(CheckWritable, AcceptsFilesOverwrittenInPlaceInAReadOnlyFolder) {
  namespace fs = std::filesystem;
  const std::string folder = TempPath("refuses");
  CreateFolders(folder);
  WriteFile(folder + "/there", "");
  fs::permissions(folder + "/there", fs::perms(0666));
  fs::permissions(folder, fs::perms(0555));
  EXPECT_TRUE(Takes("/dev/null"));
  EXPECT_TRUE(Takes("/dev/stdout"));
  EXPECT_TRUE(Takes(folder + "/there", true));
  EXPECT_FALSE(Takes(folder + "/there"));
  EXPECT_FALSE(Takes(folder + "/absent", true));
  fs::permissions(folder, fs::perms(0755));
}

TEST(OutputFiles, NoneTakesThePlaceOfAnother) {
  OutputFiles outputs({});
  CreateFolders(TempPath("outputs"));
  outputs.Add("--save", TempPath("outputs/one"), true);
  outputs.Add("--metrics", "/dev/null", true);
  outputs.Add("--trace", "/dev/null", true);
  outputs.Add("--costs", "", true);
  try {
    outputs.Add("--report", TempPath("outputs/../outputs/one"), false);
    FAIL() << "accepted";
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_EQ(what.rfind("--report: ", 0), 0u) << what;
    EXPECT_NE(what.find("is where --save goes"), std::string::npos) << what;
  }
}

}  // namespace pipewright
