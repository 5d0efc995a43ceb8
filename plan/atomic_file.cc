#include "plan/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "plan/error.h"

namespace pipewright {

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  struct stat there;
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) {
    fd_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) Fail();
    return;
  }
  static std::atomic<int> count{0};
  temporary_ = path + ".tmp" + std::to_string(getpid()) + "." + std::to_string(count++);
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) Fail();
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::Fail() const {
  throw Error(path_, std::string("cannot be written: ") + std::strerror(errno));
}

void AtomicFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) Fail();
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void AtomicFile::Commit() {
  if (fsync(fd_) != 0 && !temporary_.empty()) Fail();
  int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) Fail();
  if (!temporary_.empty() && std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail();
  temporary_.clear();
}

void CheckWritable(const std::string& path) {
  size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(path, "cannot be written: folder " + folder + ": " + std::strerror(errno));
  if (access(path.c_str(), F_OK) == 0 && access(path.c_str(), W_OK) != 0)
    throw Error(path, std::string("cannot be written: ") + std::strerror(errno));
}

}  // namespace pipewright
