#include "runtime/disk/weight_stream.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/disk/block_file.h"
#include "runtime/disk/weight_layout.h"
#include "runtime/exec/clock.h"

namespace pipewright {

namespace {

// Bytes that one thread reads at once while another reads the next chunk. With two readers the disk
// stays busy even if a thread that has finished reading waits for a core.
constexpr uint64_t kChunk = 16 << 20;
constexpr int kReaders = 2;

struct Buffer {
  char* data = nullptr;
  uint64_t size = 0;
  std::shared_ptr<void> owner = nullptr;  // null: it is mapped
};

// Allocates whole blocks in huge pages, except for the remainder at the end: with small pages, a
// disk request has hundreds of addresses and may take three times as long. Returns null if out of
// memory.
char* Allocate(uint64_t size) {
  constexpr uint64_t kHuge = 2 << 20;
  void* all =
      mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* from = static_cast<char*>(all);
  const uint64_t before = kHuge - reinterpret_cast<uintptr_t>(from) % kHuge;
  munmap(from, before);
  if (before < kHuge) munmap(from + before + size, kHuge - before);
#ifdef MADV_HUGEPAGE
  madvise(from + before, size, MADV_HUGEPAGE);
#endif
  return from + before;
}

struct Loaded {
  size_t buffer = 0;
  enum { kReading, kThere, kFailed } state = kReading;
  std::exception_ptr error;  // the first error
  size_t chunks = 0;         // chunks not yet read
  std::vector<char*> pieces;
  std::vector<Buffer> maps;  // by stretch, if the page cache is used in place
};

// A block-aligned part of a stretch of a stage.
struct Chunk {
  int stage = 0;
  const WeightStretch* stretch = nullptr;
  uint64_t begin = 0, end = 0;  // position in the file
};

// Cuts a stage into chunks of about equal size: after a short last chunk, one reader would idle
// while the other still reads the chunk before it.
std::vector<Chunk> ChunksOf(int stage, const WeightLayout& layout) {
  std::vector<Chunk> chunks;
  for (const WeightStretch& stretch : layout.stretches) {
    if (stretch.end == stretch.begin) continue;
    const uint64_t begin = BlockDown(stretch.begin), size = stretch.end - begin;
    const uint64_t count = std::max<uint64_t>(1, (size + kChunk / 2) / kChunk);
    for (uint64_t i = 0; i < count; ++i)
      chunks.push_back({stage, &stretch, begin + BlockDown(size * i / count),
                        i + 1 == count ? stretch.end : begin + BlockDown(size * (i + 1) / count)});
  }
  return chunks;
}

void Unmap(std::vector<Buffer>& maps) {
  for (const Buffer& map : maps)
    if (map.data) BlockFile::Unmap(map.data, map.size);
  maps.clear();
}

// Returns an empty list unless all of it could be mapped.
std::vector<Buffer> MapCached(const WeightLayout& layout) {
  std::vector<Buffer> maps;
  if (!layout.aligned || sysconf(_SC_PAGESIZE) != static_cast<long>(kBlock)) return maps;
  for (const WeightStretch& stretch : layout.stretches) {
    Buffer& map = maps.emplace_back();
    if (stretch.end == stretch.begin) continue;
    map.size = stretch.end - BlockDown(stretch.begin);
    map.data = stretch.file->MapCached(BlockDown(stretch.begin), stretch.end);
    if (map.data) continue;
    Unmap(maps);
    break;
  }
  return maps;
}

// Reads the I/O counters of this thread. Returns false if the system has none.
bool ReadCounters(uint64_t& reads, uint64_t& disk, uint64_t& own) {
  int fd = open("/proc/thread-self/io", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[512];
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  own = static_cast<uint64_t>(n);
  const char* all = std::strstr(text, "rchar: ");
  const char* blocks = std::strstr(text, "read_bytes: ");
  if (!all || !blocks) return false;
  reads = std::strtoull(all + 7, nullptr, 10);
  disk = std::strtoull(blocks + 12, nullptr, 10);
  return true;
}

}  // namespace

struct WeightStream::State {
  // Constant after construction.
  std::map<std::string, std::unique_ptr<BlockFile>> files;
  std::map<int, WeightLayout> layouts;  // by stage
  std::vector<Buffer> buffers;
  std::vector<uint64_t> sizes;
  bool in_place = true;                        // what the page cache has is not read
  std::vector<std::vector<size_t>> buffer_of;  // by list and index of the LOAD

  // Used by the caller's thread.
  size_t list = 0, load = 0;  // position of the next LOAD
  StatusFile* status = nullptr;

  mutable std::mutex mutex;  // guards the following members
  std::condition_variable changed;
  std::map<int, Loaded> loaded;
  std::deque<int> wanted;       // stages not yet cut into chunks, in order
  std::deque<Chunk> chunks;     // chunks to read, in order; they precede the stages in `wanted`
  std::vector<Buffer> evicted;  // to be unmapped before anything else is read
  bool cutting = false;         // a thread is cutting the first of `wanted`; those behind it wait
  int busy = 0;                 // threads that are reading
  double since = 0;             // when the first of them began
  bool stop = false;
  StreamStats stats;

  std::vector<std::thread> threads;

  ~State() {
    {
      std::lock_guard lock(mutex);
      stop = true;
      changed.notify_all();
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& [stage, entry] : loaded) Unmap(entry.maps);
    Unmap(evicted);
    for (const Buffer& buffer : buffers)
      if (buffer.data && !buffer.owner) munmap(buffer.data, buffer.size);
  }

  void Assign(const std::vector<Action>& actions) {
    std::vector<bool> taken(buffers.size());
    std::map<int, size_t> where;
    std::vector<size_t>& chosen = buffer_of.emplace_back();
    for (const Action& a : actions) {
      auto layout = layouts.find(a.stage);
      if (layout == layouts.end()) continue;
      if (a.kind == ActionKind::kEvict && where.count(a.stage)) {
        taken[where[a.stage]] = false;
        where.erase(a.stage);
      }
      if (a.kind != ActionKind::kLoad) continue;
      // Picks the smallest free buffer that is large enough, or else the largest, which then grows.
      const uint64_t need = layout->second.size;
      size_t best = buffers.size();
      for (size_t b = 0; b < buffers.size(); ++b) {
        if (taken[b]) continue;
        const uint64_t size = buffers[b].size,
                       other = best < buffers.size() ? buffers[best].size : 0;
        const bool better = best == buffers.size() || (size >= need ? other < need || size < other
                                                                    : other < need && size > other);
        if (better) best = b;
      }
      if (best == buffers.size()) buffers.emplace_back(), taken.push_back(false);
      taken[best] = true;
      buffers[best].size = std::max(buffers[best].size, need);
      where[a.stage] = best;
      chosen.push_back(best);
    }
  }

  // Runs `work` without the lock, counts the bytes that it reads, and stores its exception.
  template <typename F>
  void Reading(std::unique_lock<std::mutex>& lock, std::exception_ptr& error, F work) {
    if (busy++ == 0) since = Now();
    lock.unlock();
    StreamStats now;
    uint64_t reads = 0, disk = 0, own = 0, reads_after = 0, disk_after = 0, unused = 0;
    const bool counted = ReadCounters(reads, disk, own);
    try {
      work(now);
    } catch (...) {
      error = std::current_exception();
    }
    if (counted && ReadCounters(reads_after, disk_after, unused)) {
      now.counted_reads = reads_after - reads - own;
      now.counted_disk = disk_after - disk;
    }
    lock.lock();
    if (--busy == 0) stats.reading += Now() - since;
    stats.payload += now.payload, stats.direct += now.direct, stats.cached += now.cached;
    stats.mapped += now.mapped;
    stats.counted_reads += now.counted_reads, stats.counted_disk += now.counted_disk;
  }

  void There(const WeightLayout& layout, Loaded& entry) {
    for (size_t move : layout.move) {
      const auto [stretch, at] = layout.in_stretch[move];
      char* map = entry.maps.empty() ? nullptr : entry.maps[stretch].data;
      entry.pieces.push_back(map ? map + at : buffers[entry.buffer].data + layout.moves[move].to);
    }
    entry.state = entry.error ? Loaded::kFailed : Loaded::kThere;
    changed.notify_all();
  }

  // Waits until a stage has been read. Only the caller's thread calls it.
  void Await(std::unique_lock<std::mutex>& lock, int stage, const Loaded& entry) {
    if (entry.state != Loaded::kReading) return;
    if (status) status->WaitFor({.kind = Awaited::kWeights, .from = stage});
    changed.wait(lock, [&] { return entry.state != Loaded::kReading; });
    if (status) status->WaitFor({});
  }

  // Maps the stage, or queues its chunks for reading.
  void Begin(std::unique_lock<std::mutex>& lock) {
    const int stage = wanted.front();
    const WeightLayout& layout = layouts.at(stage);
    Loaded& entry = loaded.at(stage);  // the reference stays valid until the stage is loaded
    std::vector<Chunk> parts;
    std::vector<Buffer> maps;
    std::exception_ptr error;
    cutting = true;
    Reading(lock, error, [&](StreamStats& now) {
      if (in_place) maps = MapCached(layout);
      now.payload = layout.payload;
      if (maps.empty())
        parts = ChunksOf(stage, layout);
      else
        now.mapped = layout.payload;
    });
    cutting = false;
    entry.maps = std::move(maps), entry.error = error;
    wanted.pop_front();
    entry.chunks = parts.size();
    chunks.insert(chunks.end(), parts.begin(), parts.end());
    if (parts.empty()) There(layout, entry);
    changed.notify_all();
  }

  void ReadChunk(std::unique_lock<std::mutex>& lock) {
    const Chunk chunk = chunks.front();
    chunks.pop_front();
    const WeightLayout& layout = layouts.at(chunk.stage);
    Loaded& entry = loaded.at(chunk.stage);
    char* buffer = buffers[entry.buffer].data;
    std::exception_ptr error;
    Reading(lock, error, [&](StreamStats& now) {
      const WeightStretch& stretch = *chunk.stretch;
      char* to = buffer + stretch.at + (chunk.begin - BlockDown(stretch.begin));
      stretch.file->Read(chunk.begin, chunk.end, kBlock, to, now.direct, now.cached);
    });
    if (error && !entry.error) entry.error = error;
    if (--entry.chunks > 0) return;
    if (!entry.error) {
      lock.unlock();
      MoveWeights(layout, buffer);
      lock.lock();
    }
    There(layout, entry);
  }

  void Run() {
    pthread_setname_np(pthread_self(), "pipewright-load");
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] {
        return stop || !evicted.empty() || !chunks.empty() || (!wanted.empty() && !cutting);
      });
      if (stop) return;
      if (!evicted.empty()) {
        std::vector<Buffer> maps = std::move(evicted);
        evicted.clear();
        lock.unlock();
        Unmap(maps);
        lock.lock();
      } else if (!chunks.empty()) {
        ReadChunk(lock);
      } else {
        Begin(lock);
      }
    }
  }
};

WeightStream::WeightStream(const std::vector<std::vector<Action>>& lists,
                           const std::map<int, std::vector<WeightPiece>>& stages,
                           const BufferMemory& memory)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.in_place = !memory;
  for (const auto& [stage, pieces] : stages)
    for (const WeightPiece& piece : pieces)
      if (auto& file = s.files[piece.file]; !file) file = std::make_unique<BlockFile>(piece.file);
  for (const auto& [stage, pieces] : stages) s.layouts[stage] = MakeWeightLayout(pieces, s.files);
  for (const std::vector<Action>& actions : lists) s.Assign(actions);
  for (Buffer& buffer : s.buffers) {
    buffer.size = BlockDown(std::max<uint64_t>(buffer.size, 1) + kBlock - 1);
    s.sizes.push_back(buffer.size);
    if (memory) buffer.owner = memory(buffer.size);
    buffer.data = memory ? static_cast<char*>(buffer.owner.get()) : Allocate(buffer.size);
    if (!buffer.data)
      throw Error("offload", "no memory for a buffer of " + std::to_string(buffer.size) + " bytes",
                  "cut the package into smaller modules");
  }
  for (int i = 0; i < kReaders; ++i) s.threads.emplace_back([&s] { s.Run(); });
}

WeightStream::~WeightStream() = default;

void WeightStream::ReportTo(StatusFile& status) { state_->status = &status; }

void WeightStream::Follow(size_t list) {
  if (list >= state_->buffer_of.size())
    throw Error("offload", "there is no list " + std::to_string(list) +
                               " of actions: the stream has " +
                               std::to_string(state_->buffer_of.size()));
  state_->list = list;
  state_->load = 0;
}

void WeightStream::Load(int stage) {
  State& s = *state_;
  const std::vector<size_t>& buffers = s.buffer_of[s.list];
  const size_t buffer = buffers.at(s.load++ % buffers.size());
  std::lock_guard lock(s.mutex);
  if (!s.loaded.emplace(stage, Loaded{buffer, Loaded::kReading, nullptr, 0, {}, {}}).second)
    throw Error("stage " + std::to_string(stage), "its weights are loaded twice");
  s.wanted.push_back(stage);
  s.changed.notify_all();
}

const std::vector<char*>& WeightStream::Wait(int stage) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  auto found = s.loaded.find(stage);
  if (found == s.loaded.end())
    throw Error("stage " + std::to_string(stage), "its weights are not loaded");
  Loaded& entry = found->second;
  if (entry.state == Loaded::kReading) {
    const double start = Now();
    s.Await(lock, stage, entry);
    s.stats.waited += Now() - start;
  }
  if (entry.state == Loaded::kFailed) std::rethrow_exception(entry.error);
  return entry.pieces;
}

void WeightStream::Evict(int stage) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  auto found = s.loaded.find(stage);
  if (found == s.loaded.end())
    throw Error("stage " + std::to_string(stage), "its weights are not loaded");
  // A buffer is reused for the next stage only when no thread reads into it any more.
  s.Await(lock, stage, found->second);
  for (const Buffer& map : found->second.maps)
    if (map.data) s.evicted.push_back(map);
  s.loaded.erase(found);
  s.changed.notify_all();
}

size_t WeightStream::BufferOf(int stage) const {
  std::lock_guard lock(state_->mutex);
  return state_->loaded.at(stage).buffer;
}

uint64_t WeightStream::BytesOf(int stage) const { return state_->layouts.at(stage).size; }

bool WeightStream::Holds(int stage, const void* address) const {
  const State& s = *state_;
  std::lock_guard lock(s.mutex);
  auto found = s.loaded.find(stage);
  if (found == s.loaded.end()) return false;
  const char* at = static_cast<const char*>(address);
  auto within = [&](const Buffer& b) { return at >= b.data && at < b.data + b.size; };
  const std::vector<Buffer>& maps = found->second.maps;
  return within(s.buffers[found->second.buffer]) || std::any_of(maps.begin(), maps.end(), within);
}

StreamStats WeightStream::stats() const {
  std::lock_guard lock(state_->mutex);
  return state_->stats;
}

const std::vector<uint64_t>& WeightStream::buffers() const { return state_->sizes; }

}  // namespace pipewright
