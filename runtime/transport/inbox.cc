#include "runtime/transport/inbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>

namespace pipewright {

namespace {

// Layout of the file: one page with the key, one page per sender for its offers, then memory.
constexpr uint64_t kPage = 4096;
constexpr int kOffers = 64;
constexpr int kLately = 1000;  // releases of memory over which the peak use is tracked
static_assert(kOffers * sizeof(Offer) <= kPage && std::atomic<uint64_t>::is_always_lock_free);

Offer* OffersTo(char* data, int sender) {
  return reinterpret_cast<Offer*>(data + kPage * (1 + static_cast<uint64_t>(sender)));
}

uint64_t PageUp(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

char* Map(int file, uint64_t size) {
  rlimit limit = {};  // with a limit on address space there is none to spare
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return nullptr;
  void* data =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, size, MADV_DONTDUMP);
  return static_cast<char*>(data);
}

// Returns the size of an inbox: as much as the machine has or may use; only pages in use take
// memory. Each of `ranks` maps the inboxes of all others, and addresses end at 2^47.
uint64_t MostMemory(int ranks) {
  uint64_t size = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  size = std::min(size, (uint64_t{1} << 45) / static_cast<uint64_t>(ranks));
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0) size = std::min<uint64_t>(size, limit.rlim_cur);
  return size / kPage * kPage;
}

using Ranges = std::map<uint64_t, uint64_t>;  // begin: bytes

void Add(Ranges& ranges, uint64_t begin, uint64_t bytes) {
  auto after = ranges.lower_bound(begin);
  if (after != ranges.end() && after->first == begin + bytes) {
    bytes += after->second;
    after = ranges.erase(after);
  }
  if (after != ranges.begin())
    if (auto before = std::prev(after); before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  ranges.emplace(begin, bytes);
}

// Cuts `bytes` from the smallest range that is large enough. Returns 0 if there is none.
uint64_t Cut(Ranges& ranges, uint64_t bytes) {
  auto best = ranges.end();
  for (auto at = ranges.begin(); at != ranges.end(); ++at)
    if (at->second >= bytes && (best == ranges.end() || at->second < best->second)) best = at;
  if (best == ranges.end()) return 0;
  const auto [begin, size] = *best;
  ranges.erase(best);
  if (size > bytes) ranges.emplace(begin + bytes, size - bytes);
  return begin;
}

// Allocates memory for a range of the file. Without it, a write would kill the process when the
// system runs out of memory. Works in parts, because a signal makes the call start over.
bool Fill(int file, uint64_t begin, uint64_t bytes) {
  constexpr uint64_t kPart = 1 << 20;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t part = std::min(kPart, bytes - done);
    if (fallocate(file, 0, static_cast<off_t>(begin + done), static_cast<off_t>(part)) == 0)
      done += part;
    else if (errno != EINTR)
      return false;
  }
  return true;
}

bool Empty(int file, uint64_t begin, uint64_t bytes) {
  return fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                   static_cast<off_t>(bytes)) == 0;
}

}  // namespace

struct Inbox::State {
  ~State() {
    if (data) munmap(data, name.size);
    if (name.file >= 0) close(static_cast<int>(name.file));
  }

  uint64_t Take(uint64_t bytes) {
    std::lock_guard lock(mutex);
    uint64_t begin = Cut(filled, bytes);
    if (begin == 0) {
      begin = Cut(empty, bytes);
      if (begin == 0) return 0;
      if (!Fill(file(), begin, bytes)) {
        Empty(file(), begin, bytes);
        Add(empty, begin, bytes);
        return 0;
      }
      held += bytes;
    }
    used += bytes;
    most = std::max(most, used);
    Trim();
    return begin;
  }

  void Give(uint64_t begin, uint64_t bytes) {
    std::lock_guard lock(mutex);
    Add(filled, begin, bytes);
    used -= bytes;
    if (++given == kLately) given = 0, most_before = most, most = used;
    Trim();
  }

  // Keeps released memory for the next message, but at most twice the recent peak. Otherwise
  // changing sizes would leave gaps forever, and one large minibatch would keep its memory.
  void Trim() {
    while (held > 2 * std::max(most, most_before) && !filled.empty()) {
      auto smaller = [](const auto& a, const auto& b) { return a.second < b.second; };
      auto largest = std::max_element(filled.begin(), filled.end(), smaller);
      if (!Empty(file(), largest->first, largest->second)) return;
      held -= largest->second;
      Add(empty, largest->first, largest->second);
      filled.erase(largest);
    }
  }

  int file() const { return static_cast<int>(name.file); }

  InboxName name;
  char* data = nullptr;
  uint64_t memory = 0;  // offset in the file
  uint64_t made = 0;    // two per offer
  std::mutex mutex;
  // The rest is guarded by `mutex`.
  Ranges filled, empty;                // free ranges with and without memory
  uint64_t held = 0, used = 0;         // bytes with memory; bytes of these in use
  uint64_t most = 0, most_before = 0;  // peaks of the current and the last kLately releases
  int given = 0;
};

Inbox::Inbox(int senders) : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.memory = kPage * (1 + static_cast<uint64_t>(senders));
  const uint64_t size = MostMemory(senders + 1);
  if (senders == 0 || size <= s.memory) return;
  const int file = memfd_create("pipewright-inbox", MFD_CLOEXEC);
  if (file < 0) return;
  s.name.file = file;
  if (ftruncate(file, static_cast<off_t>(size)) == 0 && Fill(file, 0, s.memory))
    s.data = Map(file, size);
  if (!s.data) {
    close(file);
    s.name.file = -1;
    return;
  }
  std::random_device random;
  s.name.process = getpid();
  s.name.key = (static_cast<uint64_t>(random()) << 32) | random();
  s.name.size = size;
  std::memcpy(s.data, &s.name.key, sizeof s.name.key);
  s.empty.emplace(s.memory, size - s.memory);
}

Inbox::~Inbox() = default;

const InboxName& Inbox::name() const { return state_->name; }

std::shared_ptr<void> Inbox::Allocate(size_t bytes) {
  if (!state_->data) return nullptr;
  const uint64_t size = PageUp(std::max<uint64_t>(bytes, 1)), begin = state_->Take(size);
  if (begin == 0) return nullptr;
  return {state_->data + begin, [state = state_, begin, size](void*) { state->Give(begin, size); }};
}

Offer* Inbox::Make(int sender, int tag, uint64_t message, size_t region, const Region& memory) {
  State& s = *state_;
  const char* at = static_cast<const char*>(memory.data);
  if (!s.data || at < s.data + s.memory || at + memory.bytes > s.data + s.name.size) return nullptr;
  Offer* offers = OffersTo(s.data, sender);
  for (Offer* offer = offers; offer < offers + kOffers; ++offer) {
    if (offer->state.load(std::memory_order_acquire) != 0) continue;
    // A reader that sees the following stores also sees that the offer was withdrawn.
    std::atomic_thread_fence(std::memory_order_release);
    auto set = [](std::atomic<uint64_t>& field, uint64_t value) {
      field.store(value, std::memory_order_relaxed);
    };
    set(offer->tag, static_cast<uint64_t>(tag)), set(offer->message, message);
    set(offer->region, region), set(offer->bytes, memory.bytes);
    set(offer->offset, static_cast<uint64_t>(at - s.data));
    offer->state.store(s.made += 2, std::memory_order_release);
    return offer;
  }
  return nullptr;
}

std::unique_ptr<Outbox> Outbox::Open(const InboxName& name, int sender) {
  if (name.file < 0) return nullptr;
  const std::string path =
      "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  // In another PID namespace, this number may be a process and file that must not be opened.
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) ||
      static_cast<uint64_t>(found.st_size) != name.size)
    return nullptr;
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  uint64_t key = 0;
  char* data = nullptr;
  // Only the right file begins with the key.
  if (pread(file, &key, sizeof key, 0) == sizeof key && key == name.key)
    data = Map(file, name.size);
  close(file);
  return std::unique_ptr<Outbox>(data ? new Outbox(data, name.size, sender) : nullptr);
}

Outbox::~Outbox() { munmap(data_, size_); }

bool Outbox::Put(int tag, uint64_t message, size_t region, const Region& memory) {
  Offer* offers = OffersTo(data_, sender_);
  for (Offer* offer = offers; offer < offers + kOffers; ++offer) {
    const uint64_t state = offer->state.load(std::memory_order_acquire);
    if (state == 0 || state & 1) continue;
    auto is = [](const std::atomic<uint64_t>& field, uint64_t value) {
      return field.load(std::memory_order_relaxed) == value;
    };
    if (!is(offer->message, message) || !is(offer->tag, static_cast<uint64_t>(tag)) ||
        !is(offer->region, region))
      continue;
    const bool fits = is(offer->bytes, memory.bytes);
    const uint64_t offset = offer->offset.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!is(offer->state, state)) continue;  // replaced by another offer meanwhile
    if (!fits) return false;                 // the receiver reports the error
    // The memory stays valid: a receiver withdraws only an offer whose message came through MPI.
    std::memcpy(data_ + offset, memory.data, memory.bytes);
    offer->state.store(state + 1, std::memory_order_release);
    return true;
  }
  return false;
}

}  // namespace pipewright
