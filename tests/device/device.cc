#include "device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace sim {

namespace {

// The number of launches of each stream that are known to be done before.
using VectorClock = std::map<const Queue*, uint64_t>;

void Merge(VectorClock& into, const VectorClock& from) {
  for (const auto& [queue, count] : from) into[queue] = std::max(into[queue], count);
}

struct Task {
  const char* name = nullptr;  // null: an event, which runs after an error too
  std::function<void()> run;
};

// An access that a later one may race with.
struct Seen {
  const char* begin = nullptr;
  const char* end = nullptr;
  const Queue* queue = nullptr;
  uint64_t count = 0;  // number of the launch in its queue
  bool writes = false;
  const char* name = nullptr;
};

struct Piece {
  int device = 0;
  size_t bytes = 0;
  Queue* queue = nullptr;
  std::set<Queue*> recorded;
  std::vector<Seen> seen;
};

struct Space {  // memory of one device
  std::atomic<char*> base = nullptr;  // read without the lock
  char* shadow = nullptr;
  size_t used = 0, in_use = 0;
  std::map<std::pair<Queue*, size_t>, std::vector<char*>> freed;
  std::vector<Queue*> queues;
};

constexpr size_t kSpace = size_t{1} << 36;  // bytes of addresses per device
constexpr size_t kGrain = 512;              // bytes; allocations are rounded as by CUDA's allocator

int64_t Number(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoll(text) : otherwise;
}

}  // namespace

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::chrono::steady_clock::time_point time;
  VectorClock clock;  // the clock of the tasks before it
};

struct Queue {
  int device = 0;
  int64_t id = 0;
  VectorClock clock;  // under Machine::mutex

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool busy = false, stops = false;
  std::exception_ptr error;
  std::thread thread;
};

namespace {

struct Machine {
  std::mutex mutex;  // taken before a queue's, and never while a task runs
  std::array<Space, kMaxDevices> spaces;
  std::map<char*, Piece> blocks;
  std::map<char*, size_t> pinned;
  VectorClock host;  // one for all threads of the host
  const int devices =
      static_cast<int>(std::clamp<int64_t>(Number("SIM_DEVICES", 2), 0, kMaxDevices));
  const int64_t delay = Number("SIM_DELAY_US", 0), seed = Number("SIM_SEED", 0);
  const size_t memory = static_cast<size_t>(Number("SIM_MEMORY", kSpace));
};

void EndThreads();

// Never destroyed, because tensors of static lifetime are freed late.
Machine& TheMachine() {
  static Machine* const machine = [] {
    std::atexit(EndThreads);  // before LibTorch's statics are destroyed, which tasks use
    return new Machine;
  }();
  return *machine;
}

void EndThreads() {
  for (Space& space : TheMachine().spaces)
    for (Queue* queue : space.queues) {
      {
        std::lock_guard lock(queue->mutex);
        queue->stops = true;
      }
      queue->changed.notify_all();
      if (queue->thread.joinable()) queue->thread.join();
    }
}

std::string NameOf(const Queue& queue) {
  return "stream " + std::to_string(queue.id) + " of device " + std::to_string(queue.device);
}

// Runs the tasks of a stream, in its thread.
void Work(Queue& queue) {
  std::minstd_rand random(static_cast<unsigned>(1 + queue.id * kMaxDevices + queue.device +
                                                TheMachine().seed * 7919));
  const int64_t delay = TheMachine().delay;
  std::unique_lock lock(queue.mutex);
  for (;;) {
    queue.changed.wait(lock, [&] { return queue.stops || !queue.tasks.empty(); });
    if (queue.stops) return;
    Task task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    queue.busy = true;
    const bool runs = !task.name || !queue.error;
    lock.unlock();
    std::exception_ptr error;
    if (delay > 0)
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % static_cast<unsigned>(delay)));
    try {
      if (runs) task.run();
    } catch (...) {
      error = std::current_exception();
    }
    task = {};  // frees what it holds without the lock
    lock.lock();
    if (error && !queue.error) queue.error = error;
    queue.busy = false;
    queue.changed.notify_all();
  }
}

void Push(Queue& queue, Task task) {
  {
    std::lock_guard lock(queue.mutex);
    queue.tasks.push_back(std::move(task));
  }
  queue.changed.notify_all();
}

// Adds a task that is not an operation of the user to the stream. Requires Machine::mutex.
void PushEvent(Queue& queue, std::function<void()> run) {
  ++queue.clock[&queue];
  Push(queue, {nullptr, std::move(run)});
}

void ThrowError(Queue& queue) {
  std::lock_guard lock(queue.mutex);
  if (queue.error) std::rethrow_exception(queue.error);
}

void SetError(Queue& queue, const std::string& what) {
  std::lock_guard lock(queue.mutex);
  if (!queue.error) queue.error = std::make_exception_ptr(std::runtime_error(what));
}

bool Before(const Seen& seen, const Queue& queue) {
  if (seen.queue == &queue) return true;
  const auto known = queue.clock.find(seen.queue);
  return known != queue.clock.end() && known->second >= seen.count;
}

Piece* FindPiece(const void* address) {  // under Machine::mutex
  auto& blocks = TheMachine().blocks;
  auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == blocks.begin()) return nullptr;
  auto& [begin, block] = *--after;
  return static_cast<const char*>(address) < begin + block.bytes ? &block : nullptr;
}

// Throws on a race; otherwise records the access. Requires Machine::mutex.
void CheckAccess(const Queue& queue, uint64_t count, const char* name, const Access& access) {
  if (access.bytes == 0) return;
  Piece* block = FindPiece(access.begin);
  if (!block)
    throw std::runtime_error(std::string("sim: ") + name +
                             " uses memory that was freed, or that is not of a device");
  const Seen now{static_cast<const char*>(access.begin),
                 static_cast<const char*>(access.begin) + access.bytes, &queue, count,
                 access.writes, name};
  for (const Seen& seen : block->seen)
    if (seen.begin < now.end && now.begin < seen.end && (seen.writes || now.writes) &&
        !Before(seen, queue))
      throw std::runtime_error(std::string("sim: race: ") + name + " on " + NameOf(queue) +
                               (now.writes ? " writes" : " reads") + " what " + seen.name + " on " +
                               NameOf(*seen.queue) + (seen.writes ? " wrote" : " read") +
                               ", with no event between them");
  // This access implies earlier ones that come before it and are no stricter.
  std::erase_if(block->seen, [&](const Seen& seen) {
    return seen.begin >= now.begin && seen.end <= now.end && Before(seen, queue) &&
           (now.writes || !seen.writes);
  });
  block->seen.push_back(now);
}

// Fills memory with NaNs, in the order of its stream. Requires Machine::mutex.
void Poison(Queue& queue, void* address, size_t bytes) {
  PushEvent(queue, [to = ShadowOf(address), bytes] { std::memset(to, 0xff, bytes); });
}

void Open(Space& space) {  // under Machine::mutex
  const int file = memfd_create("sim", 0);
  if (file < 0 || ftruncate(file, kSpace) != 0) throw std::runtime_error("sim: memfd_create");
  auto map = [&](int protection) {
    void* at = mmap(nullptr, kSpace, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) throw std::runtime_error("sim: mmap");
    return static_cast<char*>(at);
  };
  space.shadow = map(PROT_READ | PROT_WRITE);
  space.base = map(PROT_NONE);
  close(file);
}

Queue* MakeQueue(int device) {  // under Machine::mutex
  auto& queues = TheMachine().spaces.at(static_cast<size_t>(device)).queues;
  auto* queue = new Queue;
  queue->device = device;
  queue->id = static_cast<int64_t>(queues.size());
  queue->thread = std::thread([queue] { Work(*queue); });
  queues.push_back(queue);
  return queue;
}

}  // namespace

int DeviceCount() { return TheMachine().devices; }
int64_t IdOf(const Queue& queue) { return queue.id; }
int DeviceOf(const Queue& queue) { return queue.device; }

int& CurrentDevice() {
  thread_local int current = 0;
  return current;
}

Queue* NewQueue(int device) {
  QueueOf(device, 0);
  std::lock_guard lock(TheMachine().mutex);
  return MakeQueue(device);
}

Queue* QueueOf(int device, int64_t id) {
  std::lock_guard lock(TheMachine().mutex);
  auto& queues = TheMachine().spaces.at(static_cast<size_t>(device)).queues;
  if (queues.empty()) MakeQueue(device);
  return queues.at(static_cast<size_t>(id));
}

void Launch(Queue& queue, const char* name, std::function<void()> task,
            const std::vector<Access>& accesses) {
  std::lock_guard lock(TheMachine().mutex);
  ThrowError(queue);
  Merge(queue.clock, TheMachine().host);
  const uint64_t count = ++queue.clock[&queue];
  for (const Access& access : accesses) CheckAccess(queue, count, name, access);
  Push(queue, {name, std::move(task)});
}

bool HasFailed(Queue& queue) {
  std::lock_guard lock(queue.mutex);
  return queue.error != nullptr;
}

bool IsIdle(Queue& queue) {
  std::lock_guard lock(TheMachine().mutex);
  {
    std::lock_guard of_queue(queue.mutex);
    if (!queue.tasks.empty() || queue.busy) return false;
  }
  Merge(TheMachine().host, queue.clock);
  ThrowError(queue);
  return true;
}

void Synchronize(Queue& queue) {
  Wait(*Record(queue));
  ThrowError(queue);
}

void SynchronizeDevice(int device) {
  std::vector<Queue*> queues;
  {
    std::lock_guard lock(TheMachine().mutex);
    queues = TheMachine().spaces.at(static_cast<size_t>(device)).queues;
  }
  for (Queue* queue : queues) Synchronize(*queue);
}

std::shared_ptr<Mark> Record(Queue& queue) {
  auto mark = std::make_shared<Mark>();
  std::lock_guard lock(TheMachine().mutex);
  Merge(queue.clock, TheMachine().host);
  PushEvent(queue, [mark] {
    std::lock_guard done(mark->mutex);
    mark->done = true;
    mark->time = std::chrono::steady_clock::now();
    mark->changed.notify_all();
  });
  mark->clock = queue.clock;
  return mark;
}

static void WaitDone(Mark& mark) {
  std::unique_lock lock(mark.mutex);
  mark.changed.wait(lock, [&] { return mark.done; });
}

void Block(Queue& queue, const std::shared_ptr<Mark>& mark) {
  std::lock_guard lock(TheMachine().mutex);
  PushEvent(queue, [mark] { WaitDone(*mark); });
  Merge(queue.clock, mark->clock);
}

bool IsDone(Mark& mark) {
  {
    std::lock_guard lock(mark.mutex);
    if (!mark.done) return false;
  }
  std::lock_guard lock(TheMachine().mutex);
  Merge(TheMachine().host, mark.clock);
  return true;
}

static std::atomic<int> hosts_waiting = 0;
int HostsWaiting() { return hosts_waiting; }

void Wait(Mark& mark) {
  ++hosts_waiting;
  WaitDone(mark);
  --hosts_waiting;
  std::lock_guard lock(TheMachine().mutex);
  Merge(TheMachine().host, mark.clock);
}

double Milliseconds(Mark& from, Mark& to) {
  WaitDone(from);
  WaitDone(to);
  return std::chrono::duration<double, std::milli>(to.time - from.time).count();
}

int DeviceAt(const void* address) {
  for (int i = 0; i < kMaxDevices; ++i) {
    const char* base = TheMachine().spaces[static_cast<size_t>(i)].base;
    if (base && address >= base && address < base + kSpace) return i;
  }
  return -1;
}

void* ShadowOf(const void* of_device) {
  if (!of_device) return nullptr;
  const int device = DeviceAt(of_device);
  if (device < 0) throw std::runtime_error("sim: an address of the host, and not of a device");
  const Space& space = TheMachine().spaces[static_cast<size_t>(device)];
  return space.shadow + (static_cast<const char*>(of_device) - space.base);
}

size_t RoundedUp(size_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

void* Allocate(int device, size_t bytes, Queue& queue) {
  if (bytes == 0) return nullptr;
  bytes = RoundedUp(bytes);
  std::lock_guard lock(TheMachine().mutex);
  Space& space = TheMachine().spaces.at(static_cast<size_t>(device));
  if (!space.base) Open(space);
  const size_t left = TheMachine().memory - std::min(TheMachine().memory, space.in_use);
  if (bytes > left)
    throw OutOfMemory("sim out of memory. Tried to allocate " + std::to_string(bytes) +
                      " bytes. Device " + std::to_string(device) + " has a total capacity of " +
                      std::to_string(TheMachine().memory) + " bytes of which " +
                      std::to_string(left) + " bytes is free.");
  std::vector<char*>& freed = space.freed[{&queue, bytes}];
  char* address = space.base + space.used;
  if (!freed.empty()) {
    address = freed.back();
    freed.pop_back();
  } else {
    if (space.used + bytes > kSpace)
      throw std::runtime_error("sim: the addresses of a device are used up");
    space.used += bytes;
  }
  space.in_use += bytes;
  Poison(queue, address, bytes);
  const Seen made{address, address + bytes, &queue, queue.clock[&queue], true, "its allocation"};
  TheMachine().blocks[address] = {device, bytes, &queue, {}, {made}};
  return address;
}

size_t Free(void* address) {
  if (!address) return 0;
  Piece block;
  {
    std::lock_guard lock(TheMachine().mutex);
    auto found = TheMachine().blocks.find(static_cast<char*>(address));
    block = std::move(found->second);
    TheMachine().blocks.erase(found);
  }
  for (Queue* other : block.recorded) Block(*block.queue, Record(*other));
  std::lock_guard lock(TheMachine().mutex);
  Merge(block.queue->clock, TheMachine().host);
  for (const Seen& seen : block.seen)
    if (!Before(seen, *block.queue))
      SetError(*block.queue, std::string("sim: race: memory was freed while ") + seen.name +
                                 " on " + NameOf(*seen.queue) +
                                 " may still use it: record_stream is missing");
  Poison(*block.queue, address, block.bytes);
  Space& space = TheMachine().spaces[static_cast<size_t>(block.device)];
  space.in_use -= block.bytes;
  space.freed[{block.queue, block.bytes}].push_back(static_cast<char*>(address));
  return block.bytes;
}

void RecordStream(const void* address, Queue& queue) {
  std::lock_guard lock(TheMachine().mutex);
  Piece* block = FindPiece(address);
  if (block && block->queue != &queue) block->recorded.insert(&queue);
}

size_t BytesInUse(int device) {
  std::lock_guard lock(TheMachine().mutex);
  return TheMachine().spaces.at(static_cast<size_t>(device)).in_use;
}

void* AllocatePinned(size_t bytes) {
  constexpr size_t kLine = 64;
  bytes = std::max(kLine, (bytes + kLine - 1) / kLine * kLine);
  void* address = std::aligned_alloc(kLine, bytes);
  std::lock_guard lock(TheMachine().mutex);
  TheMachine().pinned[static_cast<char*>(address)] = bytes;
  return address;
}

void FreePinned(void* address) {
  {
    std::lock_guard lock(TheMachine().mutex);
    TheMachine().pinned.erase(static_cast<char*>(address));
  }
  std::free(address);
}

bool IsPinned(const void* address) {
  std::lock_guard lock(TheMachine().mutex);
  auto& pinned = TheMachine().pinned;
  auto after = pinned.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == pinned.begin()) return false;
  const auto& [begin, bytes] = *--after;
  return static_cast<const char*>(address) < begin + bytes;
}

}  // namespace sim

void sim_launch(void* stream, const char* name, void (*task)(void*), void* context,
                const sim::Access* accesses, size_t count) {
  sim::Launch(*static_cast<sim::Queue*>(stream), name, [=] { task(context); },
              {accesses, accesses + count});
}

void* sim_shadow(const void* of_device) { return sim::ShadowOf(of_device); }

bool sim_has_failed(void* stream) { return sim::HasFailed(*static_cast<sim::Queue*>(stream)); }

int sim_current_device() { return sim::CurrentDevice(); }

int sim_device_of(void* stream) { return sim::DeviceOf(*static_cast<sim::Queue*>(stream)); }

int cudaDeviceGetPCIBusId(char* id, int length, int device) {
  const char* ids = std::getenv("SIM_BUS_IDS");
  if (!ids) return 1;
  std::istringstream all(ids);
  std::string one;
  for (int i = 0; i <= device; ++i) std::getline(all, one, ',');
  std::snprintf(id, static_cast<size_t>(length), "%s", one.c_str());
  return 0;
}
