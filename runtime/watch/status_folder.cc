#include "runtime/watch/status_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pipewright {

namespace fs = std::filesystem;

static constexpr char kLock[] = "pipewright-status.lock";

std::string StatusBase() {
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path().string();
}

// Another process may have removed the folder, with the file in it, before it was locked.
static bool StillThere(int fd, const std::string& file) {
  struct stat open, named;
  return fstat(fd, &open) == 0 && stat(file.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

StatusFolderUse::StatusFolderUse(const std::string& folder) {
  const std::string file = folder + "/" + kLock;
  do {
    if (fd_ >= 0) close(fd_);
    std::error_code failed;
    fs::create_directories(folder, failed);
    fd_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0)
      throw Error(folder, std::string("status files cannot be kept there: ") + std::strerror(errno));
    // Without locks, the folder stays when its processes are killed.
    if (flock(fd_, LOCK_SH) != 0) return;
  } while (!StillThere(fd_, file));
}

StatusFolderUse::StatusFolderUse(StatusFolderUse&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

StatusFolderUse& StatusFolderUse::operator=(StatusFolderUse&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

StatusFolderUse::~StatusFolderUse() {
  if (fd_ >= 0) close(fd_);
}

void RemoveUnusedStatusFolders() {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(StatusBase(), failed)) {
    if (!entry.path().filename().string().starts_with("pipewright-")) continue;
    const int fd = open((entry.path() / kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;  // it is something else
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), failed);
    close(fd);
  }
}

void RemoveOtherStatusFiles(const std::string& folder, const std::set<std::string>& kept) {
  static const std::regex kOfRank(R"(rank-\d+\.status)");
  std::vector<fs::path> others;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed))
    if (const std::string name = entry->path().filename().string();
        std::regex_match(name, kOfRank) && !kept.count(name))
      others.push_back(entry->path());
  for (const fs::path& other : others) fs::remove(other, failed);
}

}  // namespace pipewright
