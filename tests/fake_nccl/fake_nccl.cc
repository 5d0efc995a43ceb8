// libnccl.so.2 for tests without GPUs. Buffers are those of the test device (tests/device/), and
// operations run on its streams. What hangs NCCL hangs here:
//
// - A send ends when its receive has been reached; operations of one communicator run in the order
//   of their launch, those of a group at once.
// - The first use of a connection blocks the host until the peer uses it, too.
// - After an error, the streams stay stuck until CommAbort, from any thread.
// - CommAbort ends the operations that run, and waits until the streams have come past all others
//   of the communicator, which do nothing any more.
//
// FakeSettings has the environment variables for delays and failures; FAKE_NCCL_VERSION is the
// version to report. There is only blocking = 1. A launch may throw what the test device throws.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator.h"
#include "operations.h"
#include "runtime/nccl/nccl_library.h"
#include "tests/device/device.h"

namespace fake_nccl {

namespace {

using pipewright::kNcclSuccess;
using pipewright::NcclConfig;
using pipewright::NcclId;

struct FakeGroup {
  Communicator* comm = nullptr;
  void* stream = nullptr;
  std::vector<FakeOperation> operations;
  uint64_t number = 0;  // among the groups of its communicator
};

// These belong to the thread that is in a group.
struct OpenGroups {
  int depth = 0;
  int result = kNcclSuccess;  // of the calls in it
  std::vector<FakeGroup> groups;
};
thread_local OpenGroups open_groups;
thread_local std::string last_error;

int Fail(int result, const std::string& what) {
  last_error = what;
  return result;
}

// Keeps the sockets of a communicator open; throws if it is aborted.
class Use {
 public:
  explicit Use(Communicator& comm) : comm_(comm) {
    std::lock_guard lock(comm.mutex);
    if (comm.aborted) throw OperationFailure{kInvalidArgument, "the communicator was aborted"};
    ++comm.users;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    std::lock_guard lock(comm_.mutex);
    --comm_.users;
    comm_.changed.notify_all();
  }

 private:
  Communicator& comm_;
};

// Runs a group in the thread of its stream.
void RunGroup(void* context) {
  const std::unique_ptr<FakeGroup> group(static_cast<FakeGroup*>(context));
  Communicator& comm = *group->comm;
  try {
    const Use use(comm);
    std::unique_lock lock(comm.mutex);
    comm.changed.wait(lock, [&] { return comm.done == group->number || comm.aborted; });
    lock.unlock();
    RunOperations(comm, group->operations);
    lock.lock();
    comm.changed.wait(lock, [&] { return comm.error == 0 || comm.aborted; });
    ++comm.done;
  } catch (const OperationFailure&) {
    // It was aborted before it began.
  }
  std::lock_guard lock(comm.mutex);
  ++comm.ended;
  comm.changed.notify_all();
}

std::vector<sim::Access> AccessesOf(const FakeGroup& group) {
  std::vector<sim::Access> accesses;
  for (const FakeOperation& op : group.operations) {
    const size_t bytes = op.count * BytesOfType(op.type);
    if (op.from) accesses.push_back({op.from, bytes, false});
    if (op.to) accesses.push_back({op.to, bytes, true});
  }
  return accesses;
}

void LaunchGroup(FakeGroup group) {
  static const auto launch =
      reinterpret_cast<decltype(&sim_launch)>(dlsym(RTLD_DEFAULT, "sim_launch"));
  Communicator& comm = *group.comm;
  group.number = comm.launched;
  const std::vector<sim::Access> accesses = AccessesOf(group);
  void* const stream = group.stream;
  auto context = std::make_unique<FakeGroup>(std::move(group));
  launch(stream, "nccl", RunGroup, context.get(), accesses.data(), accesses.size());
  context.release();
  std::lock_guard lock(comm.mutex);
  ++comm.launched;
  comm.streams.insert(stream);
}

// Lists the sockets that a group is the first to use.
std::vector<int> FreshSockets(FakeGroup& group) {
  Communicator& comm = *group.comm;
  std::vector<int> fresh;
  auto use = [&](std::vector<bool>& used, const std::vector<int>& sockets, int peer) {
    const size_t at = static_cast<size_t>(peer);
    if (!used[at]) fresh.push_back(sockets[at]);
    used[at] = true;
  };
  for (const FakeOperation& op : group.operations) {
    const bool sends = op.kind == OperationKind::kSend;
    for (int peer = 0; op.kind == OperationKind::kAllReduce && peer < comm.ranks; ++peer) {
      if (peer == comm.rank) continue;
      use(comm.out_used, comm.out, peer);
      use(comm.in_used, comm.in, peer);
    }
    if (op.kind == OperationKind::kAllReduce) continue;
    use(sends ? comm.out_used : comm.in_used, sends ? comm.out : comm.in, op.peer);
  }
  return fresh;
}

// Blocks until the peers of all groups are here, too.
void MeetPeers(std::vector<FakeGroup>& groups) {
  std::vector<std::pair<Communicator*, int>> fresh;
  for (FakeGroup& group : groups)
    if (group.comm->settings.lazy)
      for (int socket : FreshSockets(group)) fresh.emplace_back(group.comm, socket);
  char hello = 'n';
  for (const auto& [comm, socket] : fresh) Put(*comm, socket, &hello, 1);
  for (const auto& [comm, socket] : fresh) Get(*comm, socket, &hello, 1);
}

int EndGroups() {
  std::vector<FakeGroup> groups = std::move(open_groups.groups);
  const int result = open_groups.result;
  open_groups = {};
  if (result != kNcclSuccess) return result;
  try {
    std::vector<std::unique_ptr<Use>> uses;
    for (FakeGroup& group : groups) uses.push_back(std::make_unique<Use>(*group.comm));
    MeetPeers(groups);
    for (const FakeGroup& group : groups) LaunchGroup(group);
  } catch (const OperationFailure& failure) {
    if (failure.result != 0) {
      for (FakeGroup& group : groups) SetError(*group.comm, failure.result, failure.what);
      return Fail(failure.result, failure.what);
    }
    return Fail(kInvalidUsage, "the communicator was aborted during the call");
  }
  return kNcclSuccess;
}

// Returns what is wrong with an operation, or "".
std::string Mistake(const Communicator& comm, void* stream, const FakeOperation& op) {
  static const auto device_of =
      reinterpret_cast<decltype(&sim_device_of)>(dlsym(RTLD_DEFAULT, "sim_device_of"));
  if (!stream) return "the stream is null";
  if (device_of(stream) != comm.device)
    return "the stream is not on device " + std::to_string(comm.device) +
           ", as the communicator is";
  if (BytesOfType(op.type) == 0) return "there is no type " + std::to_string(op.type);
  if (op.kind == OperationKind::kAllReduce) {
    if (!AddElements(op.type, nullptr, nullptr, 0))
      return "this fake does not add type " + std::to_string(op.type);
  } else if (op.peer < 0 || op.peer >= comm.ranks)
    return "there is no rank " + std::to_string(op.peer);
  for (const FakeGroup& group : open_groups.groups) {
    if (group.comm != &comm) continue;
    if (group.stream != stream)
      return "this fake has one stream for all operations of a communicator in a group";
    if ((group.operations[0].kind == OperationKind::kAllReduce) !=
        (op.kind == OperationKind::kAllReduce))
      return "this fake has no group with sums and other operations";
  }
  return "";
}

int Add(void* handle, void* stream, const FakeOperation& op) {
  if (!handle) return Fail(kInvalidArgument, "the communicator is null");
  Communicator& comm = *static_cast<Communicator*>(handle);
  int result = comm.error;
  std::string what = "an earlier operation failed";
  if (const std::string mistake = Mistake(comm, stream, op); !mistake.empty())
    result = kInvalidArgument, what = mistake;
  if (result != kNcclSuccess) {
    if (open_groups.depth > 0) open_groups.result = result;
    return Fail(result, what);
  }
  FakeGroup* found = nullptr;
  for (FakeGroup& group : open_groups.groups)
    if (group.comm == &comm) found = &group;
  if (!found) {
    open_groups.groups.push_back({&comm, stream, {}});
    found = &open_groups.groups.back();
  }
  found->operations.push_back(op);
  return open_groups.depth > 0 ? int{kNcclSuccess} : EndGroups();
}

// Returns true if all groups have ended, or never will, because their stream has failed.
bool HasLeft(const Communicator& comm) {
  static const auto failed =
      reinterpret_cast<decltype(&sim_has_failed)>(dlsym(RTLD_DEFAULT, "sim_has_failed"));
  return comm.users == 0 && (comm.ended == comm.launched ||
                             std::any_of(comm.streams.begin(), comm.streams.end(), failed));
}

// Ends the use of a communicator. It is never freed, because streams may still hold its groups.
void End(Communicator& comm) {
  std::unique_lock lock(comm.mutex);
  comm.aborted = true;
  comm.changed.notify_all();
  while (!HasLeft(comm)) comm.changed.wait_for(lock, std::chrono::milliseconds(5));
  CloseSockets(comm);
}

}  // namespace

}  // namespace fake_nccl

using namespace fake_nccl;
using namespace pipewright;

extern "C" {

int ncclGetVersion(int* version) {
  *version = NumberFromEnvironment("FAKE_NCCL_VERSION", 22907);
  return kNcclSuccess;
}

const char* ncclGetErrorString(int result) {
  static constexpr const char* kTexts[] = {
      "no error",
      "unhandled cuda error",
      "unhandled system error",
      "internal error",
      "invalid argument",
      "invalid usage",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
  };
  return result >= 0 && result < 8 ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(void* handle) {
  if (auto* comm = static_cast<Communicator*>(handle)) {
    std::lock_guard lock(comm->mutex);
    if (comm->error != kNcclSuccess) last_error = comm->problem;
  }
  return last_error.c_str();
}

int ncclGetUniqueId(NcclId* id) {
  std::memset(id, 0, sizeof(*id));
  std::random_device random;
  std::snprintf(id->bytes, sizeof(id->bytes), "%d-%08x%08x", getpid(), random(), random());
  return kNcclSuccess;
}

int ncclCommInitRankConfig(void** handle, int ranks, NcclId id, int rank, NcclConfig* config) {
  *handle = nullptr;
  if (rank < 0 || rank >= ranks)
    return Fail(kInvalidArgument, "there is no rank " + std::to_string(rank));
  if (config && config->magic != NcclConfig{}.magic)
    return Fail(kInvalidArgument, "the config has no magic number");
  if (config && config->blocking == 0)
    return Fail(kInvalidArgument, "this fake has blocking = 1 only");
  if (!dlsym(RTLD_DEFAULT, "sim_launch"))
    return Fail(kUnhandledDevice, "the test device (libsim.so) is not loaded");
  auto comm = std::make_unique<Communicator>();
  comm->rank = rank, comm->ranks = ranks;
  static const auto current_device =
      reinterpret_cast<decltype(&sim_current_device)>(dlsym(RTLD_DEFAULT, "sim_current_device"));
  comm->device = current_device();
  comm->settings = SettingsFromEnvironment();
  try {
    Connect(*comm, id.bytes);
  } catch (const OperationFailure& failure) {
    CloseSockets(*comm);
    return Fail(failure.result, failure.what);
  }
  *handle = comm.release();
  return kNcclSuccess;
}

int ncclCommGetAsyncError(void* handle, int* result) {
  *result = static_cast<Communicator*>(handle)->error;
  return kNcclSuccess;
}

int ncclCommAbort(void* handle) {
  Communicator& comm = *static_cast<Communicator*>(handle);
  std::this_thread::sleep_for(std::chrono::seconds(comm.settings.abort_seconds));
  End(comm);
  return kNcclSuccess;
}

int ncclCommFinalize(void* handle) {
  Communicator& comm = *static_cast<Communicator*>(handle);
  std::unique_lock lock(comm.mutex);
  comm.changed.wait(lock, [&] { return comm.done == comm.launched || comm.aborted; });
  return comm.error;
}

int ncclCommDestroy(void* handle) {
  const int result = ncclCommFinalize(handle);
  End(*static_cast<Communicator*>(handle));
  return result;
}

int ncclGroupStart() {
  ++open_groups.depth;
  return kNcclSuccess;
}

int ncclGroupEnd() {
  if (open_groups.depth == 0) return Fail(kInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--open_groups.depth > 0) return kNcclSuccess;
  return EndGroups();
}

int ncclSend(const void* from, size_t count, int type, int peer, void* comm, void* stream) {
  return Add(comm, stream, {OperationKind::kSend, peer, from, nullptr, count, type});
}

int ncclRecv(void* to, size_t count, int type, int peer, void* comm, void* stream) {
  return Add(comm, stream, {OperationKind::kRecv, peer, nullptr, to, count, type});
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* comm,
                  void* stream) {
  if (operation != kNcclSum) return Fail(kInvalidArgument, "this fake only adds");
  return Add(comm, stream, {OperationKind::kAllReduce, -1, from, to, count, type});
}

}  // extern "C"
