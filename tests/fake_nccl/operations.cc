#include "operations.h"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "runtime/nccl/nccl_library.h"
#include "sums.h"

namespace fake_nccl {

namespace {

// What a rank tells another one about its operation.
struct Announced {
  OperationKind kind;
  size_t count;
  int type, operation, root;
};

std::string TextOf(const Announced& a) {
  return std::to_string(a.count) + " elements of type " + std::to_string(a.type);
}

Announced AnnouncedOf(const FakeOperation& op) {
  Announced a;
  std::memset(&a, 0, sizeof(a));  // with the gaps, because it is compared as bytes
  const bool collective =
      op.kind == OperationKind::kAllReduce || op.kind == OperationKind::kBroadcast;
  a.kind = collective ? op.kind : OperationKind::kSend;
  a.count = op.count, a.type = op.type;
  a.operation = op.operation, a.root = collective ? op.peer : 0;
  return a;
}

// NCCL hangs, or damages memory, if the ranks do not agree.
void CheckSame(const Communicator& comm, const FakeOperation& op, int peer,
               const Announced& other) {
  const Announced mine = AnnouncedOf(op);
  if (std::memcmp(&mine, &other, sizeof(mine)) == 0) return;
  throw OperationFailure{kInvalidUsage, "rank " + std::to_string(comm.rank) + " has " +
                                            TextOf(mine) + ", and rank " + std::to_string(peer) +
                                            " " + TextOf(other) + ", or another operation"};
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

// Rank 0 adds the others' in the order of the ranks, so that sums always have the same bits.
void AllReduce(Communicator& comm, const FakeOperation& op) {
  std::vector<char> sum(BytesOf(op)), theirs(BytesOf(op));
  std::memcpy(sum.data(), ShadowOfDevice(op.from), sum.size());
  const Announced mine = AnnouncedOf(op);
  if (comm.rank > 0) {
    Put(comm, comm.star[0], &mine, sizeof(mine));
    Put(comm, comm.star[0], sum.data(), sum.size());
    Get(comm, comm.star[0], sum.data(), sum.size());
  } else {
    for (int peer = 1; peer < comm.ranks; ++peer) {
      const int socket = comm.star[static_cast<size_t>(peer)];
      Announced other;
      Get(comm, socket, &other, sizeof(other));
      CheckSame(comm, op, peer, other);
      Get(comm, socket, theirs.data(), theirs.size());
      Combine(sum.data(), theirs.data(), op.count, op.type, op.operation);
    }
    if (op.operation == pipewright::kNcclAverage) Divide(sum.data(), op.count, op.type, comm.ranks);
    for (int peer = 1; peer < comm.ranks; ++peer)
      Put(comm, comm.star[static_cast<size_t>(peer)], sum.data(), sum.size());
  }
  std::memcpy(ShadowOfDevice(op.to), sum.data(), sum.size());
}

// The root's bytes go to rank 0, and from there to all.
void Broadcast(Communicator& comm, const FakeOperation& op) {
  std::vector<char> bytes(BytesOf(op));
  const Announced mine = AnnouncedOf(op);
  const bool is_root = comm.rank == op.peer;
  if (is_root) std::memcpy(bytes.data(), ShadowOfDevice(op.from), bytes.size());
  if (comm.rank > 0) {
    Put(comm, comm.star[0], &mine, sizeof(mine));
    if (is_root) Put(comm, comm.star[0], bytes.data(), bytes.size());
    Get(comm, comm.star[0], bytes.data(), bytes.size());
  } else {
    for (int peer = 1; peer < comm.ranks; ++peer) {
      const int socket = comm.star[static_cast<size_t>(peer)];
      Announced other;
      Get(comm, socket, &other, sizeof(other));
      CheckSame(comm, op, peer, other);
      if (peer == op.peer) Get(comm, socket, bytes.data(), bytes.size());
    }
    for (int peer = 1; peer < comm.ranks; ++peer)
      Put(comm, comm.star[static_cast<size_t>(peer)], bytes.data(), bytes.size());
  }
  std::memcpy(ShadowOfDevice(op.to), bytes.data(), bytes.size());
}

void Delay(const Communicator& comm, int number) {
  if (comm.settings.delay_us <= 0) return;
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
    case OperationKind::kBroadcast:
      return Broadcast(comm, op);
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

char* ShadowOfDevice(const void* address) {
  using Shadow = void* (*)(const void*);
  static const auto shadow = reinterpret_cast<Shadow>(dlsym(RTLD_DEFAULT, "sim_shadow"));
  return static_cast<char*>(shadow(address));
}

void RunOperations(Communicator& comm, const std::vector<FakeOperation>& operations) {
  std::map<std::pair<OperationKind, int>, std::vector<FakeOperation>> lanes;
  for (const FakeOperation& op : operations) {
    const bool collective =
        op.kind == OperationKind::kAllReduce || op.kind == OperationKind::kBroadcast;
    lanes[{collective ? OperationKind::kAllReduce : op.kind, collective ? -1 : op.peer}].push_back(
        op);
  }
  std::vector<std::thread> threads;
  for (const auto& [key, lane] : lanes)
    threads.emplace_back([&comm, &lane = lane] { RunInOrder(comm, lane); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fake_nccl
