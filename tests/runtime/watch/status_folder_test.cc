// Checks that folders in shared memory go with their users.
#include "runtime/watch/status_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>

namespace pipewright {
namespace {

std::string Folder(const std::string& name) {
  return StatusBase() + "/pipewright-test-" + std::to_string(getpid()) + "-" + name;
}

TEST(StatusFolder, GoesWithItsLastUser) {
  const std::string used = Folder("used"), foreign = Folder("foreign");
  std::filesystem::create_directories(foreign);
  {
    StatusFolderUse first(used);
    StatusFolderUse second(used);
    { StatusFolderUse moved = std::move(first); }
    RemoveUnusedStatusFolders();
    EXPECT_TRUE(std::filesystem::exists(used));
  }
  RemoveUnusedStatusFolders();
  EXPECT_FALSE(std::filesystem::exists(used));
  EXPECT_TRUE(std::filesystem::exists(foreign)) << "it has no lock that shows whose it was";
  std::filesystem::remove_all(foreign);
}

TEST(StatusFolder, GoesWithAProcessThatIsKilled) {
  const std::string used = Folder("killed");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const int child = fork();
  if (child == 0) {
    StatusFolderUse use(used);
    (void)!write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  RemoveUnusedStatusFolders();
  EXPECT_TRUE(std::filesystem::exists(used));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  RemoveUnusedStatusFolders();
  EXPECT_FALSE(std::filesystem::exists(used));
  close(ready[0]);
  close(ready[1]);
}

TEST(StatusFolder, LosesTheStatusFilesOfAnEarlierRun) {
  const std::string folder = Folder("named");
  std::filesystem::create_directories(folder);
  for (const char* name : {"rank-0.status", "rank-7.status", "pipewright-h-1.status",
                           "pipewright-h-2.status", "notes.txt"})
    std::ofstream(folder + "/" + name) << "x";
  RemoveOtherStatusFiles(folder, {"rank-7.status"});
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{"rank-7.status", "pipewright-h-1.status",
                                         "pipewright-h-2.status", "notes.txt"}));
  std::filesystem::remove_all(folder);
  RemoveOtherStatusFiles(folder, {});  // it need not be there
}

}  // namespace
}  // namespace pipewright
