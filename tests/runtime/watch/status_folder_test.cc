// Checks that folders in shared memory go with their users.
#include "runtime/watch/status_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
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

}  // namespace
}  // namespace pipewright
