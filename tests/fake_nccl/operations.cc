#include "operations.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "runtime/nccl/nccl_library.h"

namespace fake_nccl {

namespace {

// What a rank tells another one about its operation.
struct Announced {
  size_t count = 0;
  int64_t type = 0;
};

std::string TextOf(const Announced& a) {
  return std::to_string(a.count) + " elements of type " + std::to_string(a.type);
}

Announced AnnouncedOf(const FakeOperation& op) { return {op.count, op.type}; }

// NCCL hangs, or damages memory, if the ranks do not agree.
void CheckSame(const Communicator& comm, const FakeOperation& op, int peer,
               const Announced& other) {
  const Announced mine = AnnouncedOf(op);
  if (mine.count == other.count && mine.type == other.type) return;
  throw OperationFailure{kInvalidUsage, "rank " + std::to_string(comm.rank) + " has " +
                                            TextOf(mine) + ", and rank " + std::to_string(peer) +
                                            " " + TextOf(other)};
}

size_t BytesOf(const FakeOperation& op) { return op.count * BytesOfType(op.type); }

// Rendezvous: the bytes leave once the receive has announced itself.
void Send(Communicator& comm, const FakeOperation& op) {
  const int socket = comm.out[static_cast<size_t>(op.peer)];
  Announced other;
  Get(comm, socket, &other, sizeof(other));
  CheckSame(comm, op, op.peer, other);
  Put(comm, socket, ShadowOfDevice(op.from), BytesOf(op));
}

void Receive(Communicator& comm, const FakeOperation& op) {
  const int socket = comm.in[static_cast<size_t>(op.peer)];
  const Announced mine = AnnouncedOf(op);
  Put(comm, socket, &mine, sizeof(mine));
  Get(comm, socket, ShadowOfDevice(op.to), BytesOf(op));
}

// The first rank adds in the order of the ranks, or from the last to the first.
void AllReduce(Communicator& comm, const FakeOperation& op) {
  const Announced mine = AnnouncedOf(op);
  const size_t bytes = BytesOf(op);
  char* const result = ShadowOfDevice(op.to);
  if (comm.rank > 0) {
    Put(comm, comm.out[0], &mine, sizeof(mine));
    Put(comm, comm.out[0], ShadowOfDevice(op.from), bytes);
    return Get(comm, comm.in[0], result, bytes);
  }
  std::vector<std::vector<char>> parts(1, std::vector<char>(bytes));
  std::memcpy(parts[0].data(), ShadowOfDevice(op.from), bytes);
  for (int peer = 1; peer < comm.ranks; ++peer) {
    const int socket = comm.in[static_cast<size_t>(peer)];
    Announced other;
    Get(comm, socket, &other, sizeof(other));
    CheckSame(comm, op, peer, other);
    parts.emplace_back(bytes);
    Get(comm, socket, parts.back().data(), bytes);
  }
  if (comm.settings.reverse) std::reverse(parts.begin(), parts.end());
  for (size_t i = 1; i < parts.size(); ++i)
    AddElements(op.type, parts[0].data(), parts[i].data(), op.count);
  std::memcpy(result, parts[0].data(), bytes);
  for (int peer = 1; peer < comm.ranks; ++peer)
    Put(comm, comm.out[static_cast<size_t>(peer)], result, bytes);
}

void Delay(const Communicator& comm, int number) {
  if (comm.settings.delay_us <= 0 || number < comm.settings.delay_from) return;
  std::minstd_rand random(static_cast<unsigned>(1 + comm.rank + 64 * number + 7919 * comm.settings.seed));
  random.discard(3);
  const unsigned us = random() % static_cast<unsigned>(comm.settings.delay_us);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

void RunOperation(Communicator& comm, const FakeOperation& op) {
  const int number = ++comm.operations;
  const FakeSettings& settings = comm.settings;
  Delay(comm, number);
  if (number == settings.fail_at && (settings.fail_rank < 0 || settings.fail_rank == comm.rank))
    throw OperationFailure{settings.fail_code, "FAKE_NCCL_FAIL_AT"};
  switch (op.kind) {
    case OperationKind::kSend:
      return Send(comm, op);
    case OperationKind::kRecv:
      return Receive(comm, op);
    case OperationKind::kAllReduce:
      return AllReduce(comm, op);
  }
}

void RunInOrder(Communicator& comm, const std::vector<FakeOperation>& operations) {
  try {
    for (const FakeOperation& op : operations)
      if (!comm.aborted && comm.error == 0) RunOperation(comm, op);
  } catch (const OperationFailure& failure) {
    if (failure.result != 0) SetError(comm, failure.result, failure.what);
  }
}

}  // namespace

size_t BytesOfType(int type) {
  switch (type) {
    case pipewright::kNcclUint8:
      return 1;
    case pipewright::kNcclFloat16:
    case pipewright::kNcclBfloat16:
      return 2;
    case pipewright::kNcclFloat32:
      return 4;
    case pipewright::kNcclFloat64:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
static bool Add(void* into, const void* from, size_t count) {
  for (size_t i = 0; i < count; ++i)
    static_cast<T*>(into)[i] = static_cast<T*>(into)[i] + static_cast<const T*>(from)[i];
  return true;
}

bool AddElements(int type, void* into, const void* from, size_t count) {
  switch (type) {
    case pipewright::kNcclFloat16:
      return Add<c10::Half>(into, from, count);
    case pipewright::kNcclBfloat16:
      return Add<c10::BFloat16>(into, from, count);
    case pipewright::kNcclFloat32:
      return Add<float>(into, from, count);
    case pipewright::kNcclFloat64:
      return Add<double>(into, from, count);
    default:
      return false;
  }
}

char* ShadowOfDevice(const void* address) {
  using Shadow = void* (*)(const void*);
  static const auto shadow = reinterpret_cast<Shadow>(dlsym(RTLD_DEFAULT, "sim_shadow"));
  return static_cast<char*>(shadow(address));
}

void RunOperations(Communicator& comm, const std::vector<FakeOperation>& operations) {
  std::map<std::pair<OperationKind, int>, std::vector<FakeOperation>> lanes;
  for (const FakeOperation& op : operations) lanes[{op.kind, op.peer}].push_back(op);
  std::vector<std::thread> threads;
  for (const auto& [key, lane] : lanes)
    threads.emplace_back([&comm, &lane = lane] { RunInOrder(comm, lane); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fake_nccl
