#include "base/files/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files/output_path.h"

namespace pipewright {

static constexpr size_t kBlock = 2 << 20;
static constexpr size_t kEnding = 20;  // most bytes that a temporary name adds

// Returns the target of a symbolic link, which need not exist yet, so that the link itself stays.
static std::string WithoutLinks(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMost = 40;  // the kernel's limit
  std::error_code none;
  fs::path file = path;
  for (int i = 0; i < kMost && fs::is_symlink(file, none); ++i)
    file = file.parent_path() / fs::read_symlink(file, none);
  return file.string();
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  if (const int open_already = OpenDescriptor(path); open_already >= 0) {
    std::fflush(stdout);
    fd_ = fcntl(open_already, F_DUPFD_CLOEXEC, 0);
    if (fd_ < 0) Fail();
    return;
  }
  struct stat there;
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) {
    fd_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) Fail();
    return;
  }
  static std::atomic<int> count{0};
  path_ = WithoutLinks(path);
  temporary_ = path_ + ".tmp" + std::to_string(getpid()) + "." + std::to_string(count++);
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
  if (!block_.empty()) {
    const size_t more = std::min(bytes.size(), kBlock - block_.size());
    block_.append(bytes.substr(0, more));
    bytes.remove_prefix(more);
    if (block_.size() < kBlock) return;
    WriteNow(block_);
    block_.clear();
  }
  const size_t whole = bytes.size() / kBlock * kBlock;
  WriteNow(bytes.substr(0, whole));
  block_ = bytes.substr(whole);
}

void AtomicFile::WriteNow(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) Fail();
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void AtomicFile::Commit() {
  WriteNow(block_);
  if (fsync(fd_) != 0 && !temporary_.empty()) Fail();
  int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) Fail();
  if (!temporary_.empty() && std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail();
  temporary_.clear();
}

void SyncFolder(const std::string& folder) {
  int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool synced = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);  // some file systems cannot sync
  int reason = errno;
  if (fd >= 0) close(fd);
  if (!synced) throw Error(folder, std::string("cannot be synced: ") + std::strerror(reason));
}

bool RenameOrExchange(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return false;
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return true;
    // Not every file system can exchange names.
    std::string aside = from + ".old";
    if (std::rename(to.c_str(), aside.c_str()) == 0 && std::rename(from.c_str(), to.c_str()) == 0 &&
        std::rename(aside.c_str(), from.c_str()) == 0)
      return true;
  }
  throw Error(to, std::string("cannot be put there: ") + std::strerror(errno));
}

void CreateFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(path, "the folder cannot be created: " + error.message());
}

void CheckWritable(const std::string& path, const std::vector<std::string>& read, bool in_place) {
  if (path.empty()) throw Error("output", "its name is empty", "name a file");
  std::error_code none;
  for (const std::string& file : read)
    if (!file.empty() && std::filesystem::equivalent(path, file, none))
      throw Error(path, "is read in this run: it would be overwritten", "name another file");
  auto refuse = [&](const std::string& of) {
    throw Error(path, "cannot be written: " + of + std::strerror(errno));
  };
  if (const int open_already = OpenDescriptor(path); open_already >= 0) {
    if (fcntl(open_already, F_GETFD) < 0) refuse("");
    return;
  }
  struct stat there;
  const bool exists = stat(path.c_str(), &there) == 0;
  if (exists && S_ISDIR(there.st_mode))
    throw Error(path, "cannot be written: it is a folder", "name a file");
  if (exists && access(path.c_str(), W_OK) != 0) refuse("");
  if (exists && (in_place || !S_ISREG(there.st_mode))) return;
  const std::string target = WithoutLinks(path);
  size_t slash = target.rfind('/');
  std::string folder = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  if (access(folder.c_str(), W_OK | X_OK) != 0) refuse("folder " + folder + ": ");
  const std::string longer = target + std::string(kEnding, 'x');
  if (stat(longer.c_str(), &there) != 0 && errno == ENAMETOOLONG) refuse("");
}

}  // namespace pipewright
