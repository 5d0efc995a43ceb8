#include "base/files/owner_lock.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/files/read_file.h"
#include "tests/temp_folder.h"

static int flock_error = 0;  // of each call, as over NFS; 0: locks work

// Takes the place of the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  if (flock_error == 0) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = flock_error;
  return -1;
}

namespace pipewright {

constexpr double kBeat = 0.01;

// A process that takes the lock, and then answers each byte by whether it has lost the lock.
struct OtherProcess {
  explicit OtherProcess(const std::string& file) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return;
    pid = fork();
    if (pid == 0) {
      OwnerLock lock(file, kBeat);
      char byte = lock.Take() ? 1 : 0;
      do byte = write(out[1], &byte, 1) == 1 && read(in[0], &byte, 1) == 1 && lock.CheckLost();
      while (true);
    }
    to = in[1], from = out[0];
    close(in[0]), close(out[1]);
    taken = Read() == 1;
  }
  ~OtherProcess() {
    End();
    close(to), close(from);
  }
  int Read() const {
    char byte = -1;
    (void)!read(from, &byte, 1);
    return byte;
  }
  bool lost() const {
    (void)!write(to, "", 1);
    return Read() == 1;
  }
  void End() {
    if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    pid = 0;
  }
  pid_t pid = -1;
  int to = -1, from = -1;
  bool taken = false;
};

TEST(OwnerLock, NamesItsOwnerAndIsFreeOnceTheOwnerIsKilled) {
  const std::string file = TempPath("lock");
  OtherProcess child(file);
  ASSERT_TRUE(child.taken);
  OwnerLock lock(file);
  EXPECT_FALSE(lock.Take());
  EXPECT_TRUE(lock.owner().here);
  for (const std::string& part : {"pid " + std::to_string(child.pid) + " on ", std::string("UTC: "),
                                  std::string("plan_tests")})
    EXPECT_NE(lock.owner().text.find(part), std::string::npos) << lock.owner().text;
  child.End();
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_TRUE(lock.Take());
  EXPECT_EQ(lock.unlocked(), "");
  EXPECT_FALSE(OtherProcess(file).taken);
}

TEST(OwnerLock, AnOwnerThatLivesCounts) {
  const std::string file = TempPath("counted");
  OwnerLock lock(file, kBeat), other(file);
  ASSERT_TRUE(lock.Take());
  ASSERT_FALSE(other.Take());
  const std::string before = ReadFile(file);
  while (ReadFile(file) == before) usleep(1000);
  usleep(1000);
  EXPECT_FALSE(other.Take());
  EXPECT_FALSE(lock.CheckLost());
}

TEST(OwnerLock, OneOfALostHostIsTakenOverAndNoticesIt) {
  const std::string file = TempPath("lost");
  OtherProcess child(file);
  ASSERT_TRUE(child.taken);
  kill(child.pid, SIGSTOP);  // like a host that hangs
  int status = 0;
  ASSERT_EQ(waitpid(child.pid, &status, WUNTRACED), child.pid);
  std::ofstream(file, std::ios::in) << R"({"host": "far", "machine": "another", "pid": 1}   )";
  std::filesystem::resize_file(file, 48);
  OwnerLock lock(file, kBeat);
  EXPECT_FALSE(lock.Take());
  EXPECT_FALSE(lock.owner().here);
  usleep(20000);
  EXPECT_FALSE(lock.Take());
  EXPECT_GE(lock.owner().silent, 0.02);
  lock.TakeOver();
  EXPECT_FALSE(lock.CheckLost());
  OwnerLock third(file);
  EXPECT_FALSE(third.Take());
  kill(child.pid, SIGCONT);
  EXPECT_TRUE(child.lost());
  child.End();
  EXPECT_FALSE(lock.CheckLost());
  EXPECT_FALSE(third.Take());
}

TEST(OwnerLock, LeavesNoFile) {
  const std::string file = TempPath("lock");
  {
    OwnerLock lock(file), other(file);
    EXPECT_TRUE(lock.Take());
    EXPECT_FALSE(other.Take());  // the same process may hold two
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(OwnerLock, IsTakenAsUnlockedWhereThereIsNoLock) {
  OwnerLock lock(TempPath("none") + "/there/lock");
  EXPECT_TRUE(lock.Take());
  EXPECT_NE(lock.unlocked(), "");
}

TEST(OwnerLock, RemovesNoFileOfAnother) {
  const std::string file = TempPath("lock");
  for (const std::string& text : {std::string(R"({"host": "far", "pid": 1})"), std::string()}) {
    if (!text.empty()) std::ofstream(file) << text;
    flock_error = ENOLCK;
    {
      OwnerLock lock(file);
      EXPECT_TRUE(lock.Take());
      EXPECT_NE(lock.unlocked(), "");
    }
    flock_error = 0;
    EXPECT_EQ(std::filesystem::exists(file), !text.empty()) << "only its own file goes";
    std::filesystem::remove(file);
  }
}

TEST(OwnerLock, LiesBesideFilesAndInFolders) {
  EXPECT_EQ(OwnerLock::FileFor("a/checkpoints", true), "a/checkpoints/.lock");
  EXPECT_EQ(OwnerLock::FileFor("a/metrics.jsonl", false), "a/.metrics.jsonl.lock");
  EXPECT_EQ(OwnerLock::FileFor("metrics.jsonl", false), ".metrics.jsonl.lock");
}

}  // namespace pipewright
