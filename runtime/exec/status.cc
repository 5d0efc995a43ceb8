#include "runtime/exec/status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

// The first line changes with every action, the second never.
struct StatusFile::Page {
  struct alignas(64) Now {
    int64_t step;
    double since;
    int32_t entry;
    int32_t waits_for;
    char action[40];  // ends with a zero
  } now;
  struct alignas(64) Rank {
    char magic[8];
    int32_t pid;
    char host[52];
  } rank;
};

static constexpr char kMagic[8] = {'p', 'w', 's', 't', 'a', 't', '1', '\0'};

std::string StatusPath(const std::string& folder, int rank) {
  return folder + "/rank-" + std::to_string(rank) + ".status";
}

StatusFile::StatusFile(const std::string& folder, int rank) {
  static_assert(sizeof(Page) == 128 && sizeof(Page::Now) == 64);
  std::string path = StatusPath(folder, rank);
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  // posix_fallocate: a full disk is an error here, not a bus error later.
  int failure = file < 0 ? errno : posix_fallocate(file, 0, sizeof(Page));
  void* memory = MAP_FAILED;
  if (!failure) {
    memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) failure = errno;
  }
  if (file >= 0) close(file);
  if (failure) throw Error(path, std::string("cannot keep the status file: ") + strerror(failure));
  page_ = static_cast<Page*>(memory);
  std::memset(memory, 0, sizeof(Page));
  page_->now.entry = page_->now.waits_for = -1;
  page_->rank.pid = getpid();
  gethostname(page_->rank.host, sizeof(page_->rank.host) - 1);
  std::memcpy(page_->rank.magic, kMagic, sizeof(kMagic));
}

StatusFile::StatusFile(StatusFile&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}

StatusFile& StatusFile::operator=(StatusFile&& other) noexcept {
  std::swap(page_, other.page_);
  return *this;
}

StatusFile::~StatusFile() {
  if (page_) munmap(page_, sizeof(Page));
}

void StatusFile::Begin(int64_t step, int entry, std::string_view action, double since) {
  if (!page_) return;
  Page::Now now{step, since, entry, -1, {}};
  std::memcpy(now.action, action.data(), std::min(action.size(), sizeof(now.action) - 1));
  page_->now = now;
}

void StatusFile::WaitFor(int rank) {
  if (page_) page_->now.waits_for = rank;
}

RankStatus ReadStatus(const std::string& path) {
  std::string bytes = ReadFile(path);
  StatusFile::Page page;
  if (bytes.size() != sizeof(page)) throw Error(path, "not a status file");
  std::memcpy(&page, bytes.data(), sizeof(page));
  if (std::memcmp(page.rank.magic, kMagic, sizeof(kMagic)) != 0)
    throw Error(path, "not a status file");
  page.now.action[sizeof(page.now.action) - 1] = 0;
  page.rank.host[sizeof(page.rank.host) - 1] = 0;
  return {page.now.action, page.now.step, page.now.entry, page.now.waits_for,
          page.now.since,  page.rank.pid, page.rank.host};
}

std::string Describe(const RankStatus& status) {
  std::string text = status.action.empty()
                         ? "between two steps (" + std::to_string(status.step) + ")"
                         : "at " + status.action + " (entry " + std::to_string(status.entry) +
                               ") of step " + std::to_string(status.step);
  if (status.waits_for >= 0) text += ", waiting for rank " + std::to_string(status.waits_for);
  return text + ", on " + status.host + " (pid " + std::to_string(status.pid) + ")";
}

}  // namespace pipewright
