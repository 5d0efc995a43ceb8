// Ranks of a communicator for tests: threads of this process, or processes that run this program.
#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/nccl/nccl_library.h"
#include "tests/device/device.h"

namespace pipewright {

// A rank, with a stream on device `rank` mod 2.
struct NcclRank {
  int rank = 0, ranks = 0;
  void* comm = nullptr;
  sim::Queue* stream = nullptr;
};
NcclRank MakeRank(const NcclId& id, int rank, int ranks);
NcclId NewId();

// Runs `act` on a new thread for each rank and returns what they throw, as text.
std::string OnThreads(int ranks, const std::function<void(NcclRank&)>& act);

// Sets an environment variable in a scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value);
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable();

 private:
  const char* name_;
};

// A process that runs `role` as a rank of a communicator; see Roles() in the test.
struct RankProcess {
  int pid = -1, output = -1;
};
RankProcess StartProcess(const std::string& role, const NcclId& id, int rank, int ranks);
// Returns what it printed, and its exit status if that is not 0.
std::string EndOf(const RankProcess& process);

// Copies values to and from memory of the device, in the order of a stream.
template <typename T>
T* ToDevice(sim::Queue& stream, const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  void* address = sim::Allocate(sim::DeviceOf(stream), bytes, stream);
  sim::Launch(
      stream, "write",
      [=] { std::memcpy(sim::ShadowOf(address), values.data(), values.size() * sizeof(T)); },
      {{address, bytes, true}});
  return static_cast<T*>(address);
}

template <typename T>
std::vector<T> ToHost(sim::Queue& stream, const T* address, size_t count) {
  std::vector<T> values(count);
  sim::Launch(stream, "read",
              [&] { std::memcpy(values.data(), sim::ShadowOf(address), count * sizeof(T)); },
              {{address, count * sizeof(T), false}});
  sim::Synchronize(stream);
  return values;
}

template <typename T>
T* EmptyOnDevice(sim::Queue& stream, size_t count) {
  return static_cast<T*>(sim::Allocate(sim::DeviceOf(stream), count * sizeof(T), stream));
}

}  // namespace pipewright
