// A device that is made of memory and threads, to prove code for accelerators where there is none.
//
// - Its memory has addresses that the host cannot read or write: they are mapped PROT_NONE, and
//   only the threads of its streams know where else the same pages are mapped (ShadowOf).
// - A stream is a thread that runs tasks one after the other; the host does not wait for it.
// - Vector clocks know what comes before what. A task that touches what another stream has
//   written or read, with no event between the two, is refused at its launch, whatever the timing.
// - Fresh and freed memory is filled with NaNs, in the order of the stream.
//
// SIM_DEVICES is the number of devices (2); SIM_DELAY_US the longest random wait before a task (0).
// No torch here: torch_device.cc makes it a device of LibTorch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace sim {

struct Queue;  // what a stream holds
struct Mark;   // what one record of an event leaves

// Bytes of a device that a task reads or writes.
struct Access {
  const void* begin = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

constexpr int kMaxDevices = 8;
int DeviceCount();

// Stream 0 is a device's default stream; the others are made by NewQueue.
Queue* QueueOf(int device, int64_t id);
Queue* NewQueue(int device);
int64_t IdOf(const Queue& queue);
int DeviceOf(const Queue& queue);

// Runs `task` on the stream after all that was launched there before. Throws where `accesses` would
// race, and what an earlier task threw: an error stays with its stream, as CUDA's do. `name` must
// outlive the memory.
void Launch(Queue& queue, const char* name, std::function<void()> task,
            const std::vector<Access>& accesses);
bool IsIdle(Queue& queue);
// Wait on the host for all that has been launched; throw as Launch.
void Synchronize(Queue& queue);
void SynchronizeDevice(int device);

// What follows Block on `queue` waits for what stood before Record on another.
std::shared_ptr<Mark> Record(Queue& queue);
void Block(Queue& queue, const std::shared_ptr<Mark>& mark);
bool IsDone(Mark& mark);
void Wait(Mark& mark);  // on the host
double Milliseconds(Mark& from, Mark& to);

// Memory belongs to the stream that it was allocated on: once freed, that one's next tasks may get
// it. Where another stream uses it too, RecordStream says so before it is freed.
void* Allocate(int device, size_t bytes, Queue& queue);
void Free(void* address);
void RecordStream(const void* address, Queue& queue);
size_t BytesInUse(int device);
int DeviceAt(const void* address);      // -1: the host's
void* ShadowOf(const void* of_device);  // only for tasks

// Memory of the host that streams read and write in their order.
void* AllocatePinned(size_t bytes);
void FreePinned(void* address);
bool IsPinned(const void* address);

}  // namespace sim

// The same for libraries that know a stream by its native handle and are not linked with this one.
extern "C" {
void sim_launch(void* stream, const char* name, void (*task)(void*), void* context,
                const sim::Access* accesses, size_t count);
void* sim_shadow(const void* of_device);
}
