// A device that consists of memory and threads, to test code for accelerators without one.
//
// - The host cannot read or write the addresses of its memory: they are mapped PROT_NONE, and only
//   the threads of its streams know where else the same pages are mapped (ShadowOf).
// - A stream is a thread that runs tasks one after the other; the host does not wait for it.
// - Vector clocks record which tasks come before others. A task that accesses memory that another
//   stream has written or read, with no event between the two, is refused at its launch, regardless
//   of timing.
// - Fresh and freed memory is filled with NaNs, in the order of the stream.
//
// SIM_DEVICES is the number of devices (2); SIM_DELAY_US the longest random wait before a task (0),
// with SIM_SEED as the seed (0); SIM_MEMORY the bytes of each device (2^36); SIM_BUS_IDS what
// cudaDeviceGetPCIBusId says of them, separated by commas (an error).
// No torch here: torch_device.cc makes it a device of LibTorch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

namespace sim {

struct Queue;  // the state of a stream
struct Mark;   // one recording of an event

// Bytes of a device that a task reads or writes.
struct Access {
  const void* begin = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

constexpr int kMaxDevices = 8;
int DeviceCount();
int& CurrentDevice();  // of this thread

// Stream 0 is a device's default stream; the others are made by NewQueue.
Queue* QueueOf(int device, int64_t id);
Queue* NewQueue(int device);
int64_t IdOf(const Queue& queue);
int DeviceOf(const Queue& queue);

// Runs `task` on the stream after everything that was launched there before. Throws if `accesses`
// would race, and rethrows the error of an earlier task: an error stays with its stream, as on
// CUDA. `name` must outlive the memory.
void Launch(Queue& queue, const char* name, std::function<void()> task,
            const std::vector<Access>& accesses);
bool HasFailed(Queue& queue);  // a task threw, and later ones do not run
// Returns true if all tasks are done: the host may rely on it as after a wait. Throws like Launch.
bool IsIdle(Queue& queue);
// Wait on the host for everything that has been launched; throw like Launch.
void Synchronize(Queue& queue);
void SynchronizeDevice(int device);

// Make tasks after Block on `queue` wait for tasks before Record on another queue.
std::shared_ptr<Mark> Record(Queue& queue);
void Block(Queue& queue, const std::shared_ptr<Mark>& mark);
bool IsDone(Mark& mark);
void Wait(Mark& mark);  // on the host
int HostsWaiting();     // threads that wait on the host now
double Milliseconds(Mark& from, Mark& to);

struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory belongs to the stream that it was allocated on: once freed, that stream's next tasks may
// get it. If another stream uses it, too, RecordStream must be called before it is freed.
// Throws OutOfMemory.
size_t RoundedUp(size_t bytes);  // to what is taken for them
void* Allocate(int device, size_t bytes, Queue& queue);
size_t Free(void* address);  // returns its bytes
void RecordStream(const void* address, Queue& queue);
size_t BytesInUse(int device);
int DeviceAt(const void* address);      // -1: the host's
void* ShadowOf(const void* of_device);  // only for tasks

// Memory of the host that streams read and write in their order.
void* AllocatePinned(size_t bytes);
void FreePinned(void* address);
bool IsPinned(const void* address);

}  // namespace sim

// Does the same for libraries that know a stream by its native handle and are not linked with this
// one.
extern "C" {
void sim_launch(void* stream, const char* name, void (*task)(void*), void* context,
                const sim::Access* accesses, size_t count);
void* sim_shadow(const void* of_device);
bool sim_has_failed(void* stream);
int sim_current_device();
int sim_device_of(void* stream);
// The function of CUDA's runtime: SIM_BUS_IDS.
int cudaDeviceGetPCIBusId(char* id, int length, int device);
}
