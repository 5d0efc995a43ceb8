#include "tensors/offload_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/files/mapped_file.h"

namespace pipewright {

namespace fs = std::filesystem;

static constexpr const char* kPrefix = "pipewright-offload-";
static constexpr const char* kLock = "lock";

namespace {

// Opens a file with an exclusive lock, which the kernel releases when the process ends.
class Locked {
 public:
  Locked(const std::string& path, int flags, bool wait)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) return;
    int result = -1;
    do result = flock(fd_, LOCK_EX | (wait ? 0 : LOCK_NB));
    while (result != 0 && errno == EINTR);
    if (result == 0) return;
    close(fd_);
    fd_ = -1;
  }
  ~Locked() {
    if (fd_ >= 0) close(fd_);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

void Sweep(const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().rfind(kPrefix, 0) != 0) continue;
    const Locked lock((entry.path() / kLock).string(), O_RDWR, /*wait=*/false);
    if (lock)
      fs::remove_all(entry.path(), ignored);
    else if (entry.symlink_status(ignored).type() == fs::file_type::directory &&
             !fs::exists(entry.path() / kLock, ignored))
      fs::remove(entry.path(), ignored);  // only if it is empty
  }
}

[[noreturn]] void Fail(const std::string& path, const char* what) {
  throw Error(path, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

std::shared_ptr<OffloadFolder> OffloadFolder::In(const std::string& parent) {
  const std::string where = parent.empty() ? fs::temp_directory_path().string() : parent;
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<OffloadFolder>> known;
  std::lock_guard<std::mutex> guard(mutex);
  std::weak_ptr<OffloadFolder>& entry = known[where];
  std::shared_ptr<OffloadFolder> folder = entry.lock();
  if (folder && folder->process_ == getpid()) return folder;
  folder.reset(new OffloadFolder(where));
  entry = folder;
  return folder;
}

OffloadFolder::OffloadFolder(std::string parent) : process_(getpid()) {
  std::error_code error;
  fs::create_directories(parent, error);
  // Keeps others from cleaning up between the creation of a folder and its locking.
  const Locked making(parent, O_RDONLY | O_DIRECTORY, /*wait=*/true);
  if (!making) Fail(parent, "cannot be used");
  Sweep(parent);
  path_ = (fs::path(parent) / kPrefix).string() + "XXXXXX";
  if (!mkdtemp(path_.data())) Fail(parent, "a folder cannot be made in it");
  Locked lock(path_ + "/" + kLock, O_RDWR | O_CREAT, /*wait=*/false);
  if (!lock) Fail(path_, "cannot be locked");
  lock_ = lock.Release();
}

OffloadFolder::~OffloadFolder() {
  std::error_code ignored;
  if (process_ == getpid()) fs::remove_all(path_, ignored);
  close(lock_);
}

std::string OffloadFolder::NewPath() {
  static std::atomic<uint64_t> count{0};
  return path_ + "/" + std::to_string(count++);
}

void WriteBytes(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".new";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) Fail(path, "cannot be written");
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int reason = errno;
      close(fd);
      unlink(temporary.c_str());
      errno = reason;
      Fail(path, "cannot be written");
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  if (close(fd) != 0 || std::rename(temporary.c_str(), path.c_str()) != 0)
    Fail(path, "cannot be written");
}

}  // namespace pipewright
