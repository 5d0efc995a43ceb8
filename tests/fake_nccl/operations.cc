#include "operations.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
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
  return type == pipewright::kNcclUint8 ? 1 : type == pipewright::kNcclFloat32 ? 4 : 0;
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
