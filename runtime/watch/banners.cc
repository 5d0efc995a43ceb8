#include "runtime/watch/banners.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/process/terminal.h"

namespace pipewright {

// A banner with one of these says only that ranks have ended; they say why themselves.
static constexpr const char* kOfEnds[] = {
    "MPI_ABORT was invoked on rank",
    "Primary job  terminated normally, but",
    "detected that one or more processes exited with non-zero status",
    "noticed that process rank",
    "has exited due to process rank",
};
// Lines that count such banners.
static constexpr const char* kCounts[] = {
    "sent help message help-mpi-api.txt / mpi-abort",
    "Set MCA parameter \"orte_base_help_aggregate\" to 0",
};

static bool IsRule(const std::string& line) {
  constexpr size_t kShortest = 40;
  const size_t dashes = line.find_first_not_of('-');
  return line.size() > kShortest && (dashes == std::string::npos || line[dashes] == '\r' ||
                                     line[dashes] == '\n') && line[0] == '-';
}

template <size_t N>
static bool HasAny(const std::string& text, const char* const (&parts)[N]) {
  return std::any_of(parts, parts + N,
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

std::string TakeShown(std::string& text, bool all) {
  std::string shown;
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string line = text.substr(0, end == std::string::npos ? end : end + 1);
    if (end == std::string::npos) {
      // May be the beginning of a rule, or of a line that counts banners.
      if (!all && (line[0] == '-' || line[0] == '[')) break;
    } else if (IsRule(line)) {
      size_t at = line.size(), next = 0;
      bool closed = false;
      for (; !closed && (next = text.find('\n', at)) != std::string::npos; at = next + 1)
        closed = IsRule(text.substr(at, next + 1 - at));
      if (!closed && !all) break;
      if (closed) line = text.substr(0, at);
      if (closed && HasAny(line, kOfEnds)) {
        text.erase(0, line.size());
        continue;
      }
    }
    if (!HasAny(line, kCounts)) shown += line;
    text.erase(0, line.size());
  }
  return shown;
}

BannerFilter::BannerFilter() {
  if (pipe2(ends_, O_CLOEXEC) != 0) throw Error("pipe", std::strerror(errno));
  thread_ = std::thread([this] { Run(); });
}

BannerFilter::~BannerFilter() {
  CloseWriteEnd();
  stop_ = true;
  thread_.join();
  close(ends_[0]);
}

void BannerFilter::CloseWriteEnd() {
  if (ends_[1] >= 0) close(ends_[1]);
  ends_[1] = -1;
}

void BannerFilter::Run() {
  constexpr int kTick = 100, kPatience = 5;  // milliseconds; ticks to wait for the rest of a banner
  std::string text;
  bool begins = true;  // the next text begins a line
  char bytes[4096];
  // Does not stop at the end of the file: guards reopen the pipe to say that mpirun has died.
  for (int quiet = 0;;) {
    const bool last = stop_;
    pollfd ready{ends_[0], POLLIN, 0};
    const bool any = poll(&ready, 1, last ? 0 : kTick) > 0 && (ready.revents & POLLIN);
    const ssize_t count = any ? read(ends_[0], bytes, sizeof bytes) : 0;
    if (count > 0) text.append(bytes, static_cast<size_t>(count));
    quiet = count > 0 ? 0 : quiet + 1;
    std::string shown = TakeShown(text, count <= 0 && (last || quiet >= kPatience));
    if (!shown.empty() && begins) shown = BeforeMessage() + shown;
    if (!shown.empty()) begins = shown.back() == '\n';
    for (size_t at = 0; at < shown.size();) {
      const ssize_t written = write(STDERR_FILENO, shown.data() + at, shown.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;
      at += static_cast<size_t>(written);
    }
    if (last && count <= 0) return;
    if (!any && (ready.revents & POLLHUP)) usleep(kTick * 1000);
  }
}

}  // namespace pipewright
