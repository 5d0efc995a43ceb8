#include "runtime/reports/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/files/output_path.h"
#include "base/json.h"
#include "base/process/messages.h"
#include "base/process/terminal.h"
#include "base/text.h"
#include "runtime/output_locks.h"

namespace pipewright {

// Returns how many bytes the lines of the first `steps` steps take.
static int64_t BytesOfSteps(const std::string& path, int64_t steps) {
  std::ifstream in(path);
  int64_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {  // a torn line has no end
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || entry.value("step", steps + 1) > steps) break;
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return bytes;
}

MetricsFile::MetricsFile(const std::string& path, int64_t steps)
    : path_(path), lock_(LockFile(path)) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  struct stat file = {};
  bool opened = fd_ >= 0 && fstat(fd_, &file) == 0;
  if (opened && S_ISREG(file.st_mode) && !IsStream(path)) {
    // Truncates instead of rewriting, because there may be no room for a copy.
    size_ = steps > 0 ? BytesOfSteps(path, steps) : 0;
    opened = ftruncate(fd_, size_) == 0;
  }
  if (opened) return;
  const int failure = errno;
  if (fd_ >= 0) close(fd_);
  throw Error(path, std::string("cannot be written: ") + std::strerror(failure));
}

MetricsFile::~MetricsFile() {
  if (waiting_lines_ > 0 && !Write()) lost_ += waiting_lines_;
  if (lost_ > 0)
    PrintWarning(path_ + ": " + Counted(static_cast<size_t>(lost_), "line") +
                 (lost_ == 1 ? " is" : " are") + " missing, since the file could not be written");
  close(fd_);
}

bool MetricsFile::Write() {
  while (!waiting_.empty()) {
    const ssize_t written = write(fd_, waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int failure = errno;
      // Half a line would hide the next one.
      if (size_ >= 0) (void)!ftruncate(fd_, size_);
      errno = failure;
      return false;
    }
    const std::string part = waiting_.substr(0, static_cast<size_t>(written));
    const size_t whole = part.rfind('\n') + 1;  // 0: not even one line
    if (size_ < 0) {
      waiting_.erase(0, part.size());
    } else if (whole > 0) {
      size_ += static_cast<int64_t>(whole);
      if (whole < part.size()) (void)!ftruncate(fd_, size_);
      waiting_.erase(0, whole);
    } else {
      (void)!ftruncate(fd_, size_);
      errno = ENOSPC;
      return false;
    }
  }
  waiting_lines_ = 0;
  return true;
}

void MetricsFile::Add(const std::string& line, int64_t step) {
  constexpr size_t kMost = 16 << 20;  // bytes that may wait
  if (waiting_.size() + line.size() > kMost) {
    ++lost_;
  } else {
    waiting_ += line + "\n";
    ++waiting_lines_;
  }
  const bool written = Write();
  if (!written && !told_)
    PrintWarning(path_ + ": cannot be written (" + std::strerror(errno) +
                 "): the run continues, and will write the lines from step " +
                 std::to_string(step) + " on when it can");
  if (written && told_)
    std::fprintf(stderr, "%spipewright-run: %s: can be written again\n", BeforeMessage(),
                 path_.c_str());
  told_ = !written;
}

}  // namespace pipewright
