#include "runtime/exec/weight_stream.h"

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

#include "plan/error.h"
#include "runtime/exec/block_file.h"
#include "runtime/exec/clock.h"

namespace pipewright {

namespace {

constexpr uint64_t kAlign = 64;  // of a tensor in memory

uint64_t Down(uint64_t at) { return at - at % kBlock; }
uint64_t Up(uint64_t at, uint64_t to = kBlock) { return (at + to - 1) / to * to; }

// A stretch of a file without a gap, and where it goes in the buffer.
struct Stretch {
  BlockFile* file = nullptr;
  uint64_t begin = 0, end = 0;  // in the file
  uint64_t at = 0;              // of Down(begin), in the buffer
};

// A weight's bytes as they arrive, and where they are to be.
struct Move {
  uint64_t from = 0, to = 0, bytes = 0;  // in the buffer
};

// How a stage's pieces lie in a buffer.
struct Layout {
  std::vector<Stretch> stretches;
  std::vector<Move> moves;   // ascending; `to` is never before `from`
  std::vector<size_t> move;  // by piece
  // By move: its stretch, and where in that one from Down(begin) on.
  std::vector<std::pair<size_t, uint64_t>> in_stretch;
  bool aligned = true;  // the pieces in their files, so that they can be used there
  uint64_t payload = 0, size = 0;
};

Layout MakeLayout(const std::vector<WeightPiece>& pieces,
                  const std::map<std::string, std::unique_ptr<BlockFile>>& files) {
  Layout layout;
  std::vector<size_t> order(pieces.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(pieces[a].file, pieces[a].offset, pieces[a].bytes, a) <
           std::tie(pieces[b].file, pieces[b].offset, pieces[b].bytes, b);
  });
  layout.move.resize(pieces.size());
  uint64_t free = 0;  // behind what was placed
  for (size_t i : order) {
    const WeightPiece& piece = pieces[i];
    BlockFile* file = files.at(piece.file).get();
    // Two weights may lie on the same bytes; then these are read twice.
    if (layout.stretches.empty() || layout.stretches.back().file != file ||
        layout.stretches.back().end != piece.offset) {
      free = Up(free);
      layout.stretches.push_back({file, piece.offset, piece.offset, free});
    }
    Stretch& stretch = layout.stretches.back();
    stretch.end += piece.bytes;
    Move move;
    move.from = stretch.at + (piece.offset - Down(stretch.begin));
    move.to = Up(std::max(move.from, free), kAlign);
    move.bytes = piece.bytes;
    free = move.to + move.bytes;
    layout.in_stretch.emplace_back(layout.stretches.size() - 1, piece.offset - Down(stretch.begin));
    layout.aligned = layout.aligned && piece.offset % kAlign == 0;
    layout.move[i] = layout.moves.size();
    layout.moves.push_back(move);
    layout.payload += piece.bytes;
    layout.size = std::max({layout.size, free, stretch.at + Up(stretch.end) - Down(stretch.begin)});
  }
  return layout;
}

struct Buffer {
  char* data = nullptr;
  uint64_t size = 0;
};

struct Loaded {
  size_t buffer = 0;
  enum { kReading, kThere, kFailed } state = kReading;
  std::exception_ptr error;
  std::vector<char*> pieces;
  std::vector<Buffer> maps;  // by stretch, where the page cache itself is used
};

void Unmap(std::vector<Buffer>& maps) {
  for (const Buffer& map : maps)
    if (map.data) BlockFile::Unmap(map.data, map.size);
  maps.clear();
}

// Empty unless all of it could be mapped.
std::vector<Buffer> MapCached(const Layout& layout) {
  std::vector<Buffer> maps;
  if (!layout.aligned || sysconf(_SC_PAGESIZE) != static_cast<long>(kBlock)) return maps;
  for (const Stretch& stretch : layout.stretches) {
    Buffer& map = maps.emplace_back();
    if (stretch.end == stretch.begin) continue;
    map.size = stretch.end - Down(stretch.begin);
    map.data = stretch.file->MapCached(Down(stretch.begin), stretch.end);
    if (map.data) continue;
    Unmap(maps);
    break;
  }
  return maps;
}

// What the system has counted for this thread; false where it does not tell.
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
  std::map<int, Layout> layouts;  // by stage
  std::vector<Buffer> buffers;
  std::vector<uint64_t> sizes;
  std::vector<std::vector<size_t>> buffer_of;  // by list and LOAD

  size_t list = 0, load = 0;  // the next LOAD's place; of the caller's thread

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::map<int, Loaded> loaded;
  std::deque<int> wanted;       // stages to read, in order
  std::vector<Buffer> evicted;  // to be unmapped, before anything else is read
  bool stop = false;
  StreamStats stats;

  std::thread thread;

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
      // The smallest free buffer that is large enough, else the largest, which grows.
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

  void Read(const Layout& layout, char* to, StreamStats& now) {
    for (const Stretch& stretch : layout.stretches)
      if (stretch.end > stretch.begin)
        stretch.file->Read(Down(stretch.begin), stretch.end, kBlock, to + stretch.at, now.direct,
                           now.cached);
    // From the last to the first: none is written over before it has moved.
    for (size_t i = layout.moves.size(); i-- > 0;) {
      const Move& move = layout.moves[i];
      if (move.from != move.to) std::memmove(to + move.to, to + move.from, move.bytes);
    }
    now.payload += layout.payload;
  }

  void Run() {
    pthread_setname_np(pthread_self(), "pipewright-load");
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stop || !wanted.empty() || !evicted.empty(); });
      if (stop) return;
      if (!evicted.empty()) {
        std::vector<Buffer> maps = std::move(evicted);
        evicted.clear();
        lock.unlock();
        Unmap(maps);
        lock.lock();
        continue;
      }
      const int stage = wanted.front();
      const Layout& layout = layouts.at(stage);
      char* to = buffers[loaded.at(stage).buffer].data;
      lock.unlock();
      StreamStats now;
      std::exception_ptr error;
      uint64_t reads = 0, disk = 0, own = 0, reads_after = 0, disk_after = 0, unused = 0;
      const bool counted = ReadCounters(reads, disk, own);
      const double start = Now();
      std::vector<Buffer> maps;
      try {
        maps = MapCached(layout);
        if (maps.empty())
          Read(layout, to, now);
        else
          now.payload = now.mapped = layout.payload;
      } catch (...) {
        error = std::current_exception();
      }
      now.reading = Now() - start;
      if (counted && ReadCounters(reads_after, disk_after, unused)) {
        now.counted_reads = reads_after - reads - own;
        now.counted_disk = disk_after - disk;
      }
      lock.lock();
      wanted.pop_front();
      stats.payload += now.payload, stats.direct += now.direct, stats.cached += now.cached;
      stats.mapped += now.mapped;
      stats.reading += now.reading;
      stats.counted_reads += now.counted_reads, stats.counted_disk += now.counted_disk;
      Loaded& entry = loaded.at(stage);
      for (size_t move : layout.move) {
        const auto [stretch, at] = layout.in_stretch[move];
        char* map = maps.empty() ? nullptr : maps[stretch].data;
        entry.pieces.push_back(map ? map + at : to + layout.moves[move].to);
      }
      entry.maps = std::move(maps);
      entry.state = error ? Loaded::kFailed : Loaded::kThere;
      entry.error = error;
      changed.notify_all();
    }
  }
};

WeightStream::WeightStream(const std::vector<std::vector<Action>>& lists,
                           const std::map<int, std::vector<WeightPiece>>& stages)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  for (const auto& [stage, pieces] : stages)
    for (const WeightPiece& piece : pieces)
      if (auto& file = s.files[piece.file]; !file) file = std::make_unique<BlockFile>(piece.file);
  for (const auto& [stage, pieces] : stages) s.layouts[stage] = MakeLayout(pieces, s.files);
  for (const std::vector<Action>& actions : lists) s.Assign(actions);
  for (Buffer& buffer : s.buffers) {
    buffer.size = Up(std::max<uint64_t>(buffer.size, 1));
    s.sizes.push_back(buffer.size);
    void* data =
        mmap(nullptr, buffer.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      throw Error("offload", "no memory for a buffer of " + std::to_string(buffer.size) + " bytes",
                  "cut the package into smaller modules");
    buffer.data = static_cast<char*>(data);
#ifdef MADV_HUGEPAGE
    madvise(data, buffer.size, MADV_HUGEPAGE);
#endif
  }
  s.thread = std::thread([&s] { s.Run(); });
}

WeightStream::~WeightStream() {
  State& s = *state_;
  if (s.thread.joinable()) {
    {
      std::lock_guard lock(s.mutex);
      s.stop = true;
      s.changed.notify_all();
    }
    s.thread.join();
  }
  for (auto& [stage, loaded] : s.loaded) Unmap(loaded.maps);
  Unmap(s.evicted);
  for (const Buffer& buffer : s.buffers)
    if (buffer.data) munmap(buffer.data, buffer.size);
}

void WeightStream::Follow(size_t list) {
  if (list >= state_->buffer_of.size()) throw Error("offload", "there is no such list of actions");
  state_->list = list;
  state_->load = 0;
}

void WeightStream::Load(int stage) {
  State& s = *state_;
  const std::vector<size_t>& buffers = s.buffer_of[s.list];
  const size_t buffer = buffers.at(s.load++ % buffers.size());
  std::lock_guard lock(s.mutex);
  if (!s.loaded.emplace(stage, Loaded{buffer, Loaded::kReading, nullptr, {}, {}}).second)
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
    s.changed.wait(lock, [&] { return entry.state != Loaded::kReading; });
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
  // A buffer goes on to the next stage only when nothing is read into it any more.
  s.changed.wait(lock, [&] { return found->second.state != Loaded::kReading; });
  for (const Buffer& map : found->second.maps)
    if (map.data) s.evicted.push_back(map);
  s.loaded.erase(found);
  s.changed.notify_all();
}

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
