#include "runtime/exec/status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/owner_lock.h"
#include "base/files/read_file.h"

namespace pipewright {

static constexpr char kMagic[8] = {'p', 'w', 's', 't', 'a', 't', '4', '\0'};

// A rank may be killed between any two stores. So the new state is written beside the old one, and
// then a single store selects it.
struct StatusFile::Page {
  struct alignas(64) Now {
    int64_t step;
    double since;
    int32_t entry, stage, microbatch;
    char action[36];  // zero-terminated
  } now[2];
  struct alignas(64) Waiting {
    Awaited awaited[2];
    std::atomic<uint32_t> current;
  } waiting;
  struct alignas(64) Pulse {
    std::atomic<uint32_t> beats;
    std::atomic<int32_t> state, signal, stop, rank, writing;
  } pulse;
  struct alignas(64) Rank {
    char magic[8];
    int32_t pid;
    char host[116];  // longer than any name of a host
  } rank;
  std::atomic<uint32_t> current;  // index into `now`
};

std::string StatusPath(const std::string& folder, int rank) {
  return folder + "/rank-" + std::to_string(rank) + ".status";
}

StatusFile::StatusFile(const std::string& path, int rank) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(Page::Now) == 64);
  std::error_code ignored;
  const bool unnamed = std::filesystem::is_directory(path, ignored);
  if (!path.empty() && !unnamed)
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  file_ = path.empty() ? memfd_create("pipewright-status", MFD_CLOEXEC)
                       : open(path.c_str(), O_RDWR | (unnamed ? O_TMPFILE : O_CREAT) | O_CLOEXEC, 0644);
  // With posix_fallocate a full disk is an error here, not SIGBUS later.
  int failure = file_ < 0 ? errno : posix_fallocate(file_, 0, sizeof(Page));
  void* memory = MAP_FAILED;
  if (!failure) {
    memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) failure = errno;
  }
  if (failure) {
    if (file_ >= 0) close(file_);
    throw Error(path, std::string("cannot keep the status file: ") + strerror(failure));
  }
  page_ = new (memory) Page{};
  for (Page::Now& now : page_->now) now.entry = now.stage = now.microbatch = -1;
  SetRank(rank);
  page_->rank.pid = getpid();
  const std::string host = ThisHost();
  std::memcpy(page_->rank.host, host.data(), std::min(host.size(), sizeof(page_->rank.host) - 1));
  std::memcpy(page_->rank.magic, kMagic, sizeof(kMagic));
}

StatusFile::StatusFile(StatusFile&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)), file_(std::exchange(other.file_, -1)) {}

StatusFile& StatusFile::operator=(StatusFile&& other) noexcept {
  std::swap(page_, other.page_);
  std::swap(file_, other.file_);
  return *this;
}

StatusFile::~StatusFile() {
  if (page_) munmap(page_, sizeof(Page));
  if (file_ >= 0) close(file_);
}

void StatusFile::Begin(int64_t step, int entry, int stage, int microbatch, std::string_view action,
                       double since) {
  if (!page_) return;
  uint32_t next = 1 - page_->current.load(std::memory_order_relaxed);
  Page::Now& now = page_->now[next];
  now.step = step, now.since = since;
  now.entry = entry, now.stage = stage, now.microbatch = microbatch;
  size_t length = std::min(action.size(), sizeof(now.action) - 1);
  std::memcpy(now.action, action.data(), length);
  std::memset(now.action + length, 0, sizeof(now.action) - length);
  page_->current.store(next, std::memory_order_release);
}

void StatusFile::WaitFor(const Awaited& awaited) {
  if (!page_) return;
  uint32_t next = 1 - page_->waiting.current.load(std::memory_order_relaxed);
  page_->waiting.awaited[next] = awaited;
  page_->waiting.current.store(next, std::memory_order_release);
}

void StatusFile::SetRank(int rank) {
  if (page_) page_->pulse.rank.store(rank, std::memory_order_relaxed);
}
void StatusFile::SetState(RankState state) {
  if (page_) page_->pulse.state.store(static_cast<int32_t>(state), std::memory_order_relaxed);
}
void StatusFile::SetSignal(int signal) {
  if (page_) page_->pulse.signal.store(signal, std::memory_order_relaxed);
}
void StatusFile::RequestStop() {
  if (page_) page_->pulse.stop.store(1, std::memory_order_relaxed);
}
bool StatusFile::stop_requested() const {
  return page_ && page_->pulse.stop.load(std::memory_order_relaxed);
}
void StatusFile::Beat() {
  if (page_) page_->pulse.beats.fetch_add(1, std::memory_order_relaxed);
}
void StatusFile::BeginWriting() {
  if (page_) page_->pulse.writing.fetch_add(1, std::memory_order_relaxed);
}
void StatusFile::EndWriting() {
  if (page_) page_->pulse.writing.fetch_sub(1, std::memory_order_relaxed);
}

bool StatusFile::Decode(const void* bytes, RankStatus& status) {
  alignas(Page) char memory[sizeof(Page)];
  std::memcpy(memory, bytes, sizeof(memory));
  const auto& page = *reinterpret_cast<const Page*>(memory);
  if (std::memcmp(page.rank.magic, kMagic, sizeof(kMagic)) != 0) return false;
  const Page::Now& now = page.now[page.current & 1];
  status.rank = page.pulse.rank;
  status.action.assign(now.action, strnlen(now.action, sizeof(now.action)));
  status.step = now.step;
  status.entry = now.entry, status.stage = now.stage, status.microbatch = now.microbatch;
  status.awaits = page.waiting.awaited[page.waiting.current & 1];
  status.since = now.since;
  status.state = static_cast<RankState>(page.pulse.state.load());
  status.signal = page.pulse.signal;
  status.beats = page.pulse.beats;
  status.stop = page.pulse.stop;
  status.writing = page.pulse.writing;
  status.pid = page.rank.pid;
  status.host.assign(page.rank.host, strnlen(page.rank.host, sizeof(page.rank.host)));
  return true;
}

// Reads through the file, so that the kernel, not this process, reads what other threads store.
RankStatus StatusFile::Read() const {
  RankStatus status;
  char bytes[sizeof(Page)];
  if (file_ >= 0 && pread(file_, bytes, sizeof(bytes), 0) == sizeof(bytes)) Decode(bytes, status);
  return status;
}

bool DecodeStatus(std::string_view bytes, RankStatus& status) {
  return bytes.size() == sizeof(StatusFile::Page) && StatusFile::Decode(bytes.data(), status);
}

RankStatus ReadStatus(const std::string& path) {
  std::string bytes = ReadFile(path);
  RankStatus status;
  if (!DecodeStatus(bytes, status)) throw Error(path, "not a status file");
  return status;
}

std::vector<RankStatus> ReadStatusFolder(const std::string& folder) {
  std::vector<RankStatus> all;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (entry.path().extension() != ".status") continue;
    try {
      all.push_back(ReadStatus(entry.path()));
    } catch (const Error&) {  // the file is just being created or removed
    }
  }
  std::sort(all.begin(), all.end(),
            [](const RankStatus& a, const RankStatus& b) { return a.rank < b.rank; });
  return all;
}

std::string Describe(const Awaited& a) {
  const std::string rank =
      (a.sends ? ", to leave to rank " : ", of rank ") + std::to_string(a.rank);
  switch (a.kind) {
    case Awaited::kNothing:
      return "";
    case Awaited::kEveryRank:
      return "every rank";
    case Awaited::kSizes:
      return "the sizes of a minibatch" + rank;
    case Awaited::kSharedWeight:
      return "the gradient of a shared weight" + rank;
    case Awaited::kStop:
      return "the decision whether to stop" + rank;
    case Awaited::kReport:
      return "the busy time of a step" + rank;
    case Awaited::kLosses:
      return "the losses" + rank;
    case Awaited::kBuffers:
      return "the buffers of a replica" + rank;
    case Awaited::kTensor:
      return "a tensor" + rank;
    case Awaited::kRequest:
      return "the next request" + rank;
    case Awaited::kShards:
      return "the shards of a checkpoint" + rank;
    case Awaited::kDevice:
      return "its device";
    case Awaited::kDisk:
      return "its own shards of a checkpoint to be written";
    case Awaited::kWeights:
      return "the weights of stage " + std::to_string(a.from) + " from its disk";
    case Awaited::kFolder:
      return "the lock of the checkpoint folder";
    case Awaited::kValues:
    case Awaited::kGradients:
      break;
  }
  return (a.kind == Awaited::kGradients ? "the gradients of stage " : "the values of stage ") +
         std::to_string(a.from) + " for stage " + std::to_string(a.to) + ", microbatch " +
         std::to_string(a.microbatch) + rank;
}

std::string DescribePlace(const RankStatus& s) {
  std::string text;
  if (s.entry < 0) {
    text = s.step > 0 ? "after step " + std::to_string(s.step) : "before the first step";
  } else {
    text = "step " + std::to_string(s.step + 1);
    if (s.stage >= 0) text += ", stage " + std::to_string(s.stage);
    if (s.microbatch >= 0) text += ", microbatch " + std::to_string(s.microbatch);
    text += ", action " + s.action + " (entry " + std::to_string(s.entry) + ")";
  }
  std::string awaited = Describe(s.awaits);
  if (!awaited.empty()) text += ", waiting for " + awaited;
  if (s.writing > 0 && s.awaits.kind != Awaited::kDisk) text += ", writing a checkpoint";
  return text;
}

std::string DescribeRank(const RankStatus& s) {
  return (s.rank < 0 ? "a rank" : "rank " + std::to_string(s.rank)) + " on " + s.host + " (pid " +
         std::to_string(s.pid) + ")";
}

}  // namespace pipewright
