#include "base/files/owner_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/json.h"

namespace pipewright {

std::string ThisHost() {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

namespace {

// Returns the boot ID, because containers on one machine have different host names, and those on
// two machines may have the same.
std::string Machine() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.empty() ? ThisHost() : id;
}

std::string TimeText() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text;
}

// Returns the command line of this process, cut to 400 bytes.
std::string CommandText() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  constexpr size_t kMost = 400;
  return text.size() > kMost ? text.substr(0, kMost) + " ..." : text;
}

std::string Contents(int fd) {
  std::string text(4096, '\0');
  const ssize_t size = pread(fd, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

OwnerLock::Owner ParseOwner(const std::string& text) {
  const Json in = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // Between locking and writing, an owner has not yet said who it is.
  if (!in.is_object()) return {true, "a process that has not said yet who it is"};
  auto field = [&](const char* key) -> std::string {
    auto found = in.find(key);
    if (found == in.end()) return "?";
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  return {field("machine") == Machine(), "pid " + field("pid") + " on " + field("host") +
                                             ", since " + field("since") + ": " + field("command")};
}

// Returns false if the file was removed or replaced before it was locked.
bool StillThere(int fd, const std::string& file) {
  struct stat open, named;
  return fstat(fd, &open) == 0 && stat(file.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

double Seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string OwnerLock::FileFor(const std::string& path, bool folder) {
  const std::filesystem::path at = path;
  if (folder) return (at / ".lock").string();
  return (at.parent_path() / ("." + at.filename().string() + ".lock")).string();
}

OwnerLock::~OwnerLock() {
  if (fd_ < 0) return;
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  beats_.join();
  if (StillThere(fd_, file_)) unlink(file_.c_str());  // while locked, so it is nobody else's
  close(fd_);
}

bool OwnerLock::Take() {
  unlocked_.clear();
  int fd = -1;
  constexpr int kMostTries = 100;
  for (int tries = 0; tries == 0 || !StillThere(fd, file_); ++tries) {
    if (fd >= 0) close(fd);
    fd = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EACCES)  // it belongs to another user
      fd = open(file_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      unlocked_ = std::strerror(errno);
      return true;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && tries < kMostTries) continue;
    const int failure = tries < kMostTries ? errno : ESTALE;
    const bool taken = failure == EWOULDBLOCK;
    const std::string text = Contents(fd);
    if (taken) {
      owner_ = ParseOwner(text);
      if (text != seen_) seen_ = text, seen_at_ = Seconds();
      owner_.silent = Seconds() - seen_at_;
    } else {
      unlocked_ = std::strerror(failure);
      if (text.empty()) unlink(file_.c_str());  // otherwise, it names an owner
    }
    close(fd);
    return !taken;
  }
  Hold(fd);
  return true;
}

void OwnerLock::TakeOver() {
  const std::string mine = file_ + "." + Machine() + "." + std::to_string(getpid());
  const int fd = open(mine.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 ||
      std::rename(mine.c_str(), file_.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) close(fd);
    unlink(mine.c_str());
    throw Error(file_, "cannot be taken from its dead owner: " + reason);
  }
  Hold(fd);
}

// On a full disk only the owner's name is lost, not the lock.
void OwnerLock::Write(int64_t count) const {
  static const Json me{{"host", ThisHost()},
                       {"machine", Machine()},
                       {"pid", getpid()},
                       {"since", TimeText()},
                       {"command", CommandText()}};
  Json now = me;
  now["beats"] = count;
  const std::string text = now.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()))
    (void)!ftruncate(fd_, static_cast<off_t>(text.size()));
}

void OwnerLock::Hold(int fd) {
  fd_ = fd;
  Write(0);
  beats_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    for (int64_t count = 1; !ends_; ++count) {
      if (wake_.wait_for(lock, std::chrono::duration<double>(beat_), [&] { return ends_; })) return;
      lock.unlock();
      if (!CheckLost()) Write(count);
      lock.lock();
    }
  });
}

bool OwnerLock::CheckLost() {
  if (fd_ >= 0 && !StillThere(fd_, file_)) lost_ = true;
  return lost_;
}

}  // namespace pipewright
