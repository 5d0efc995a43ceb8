// An inbox is shared memory of one rank that the other ranks of its host write to. The sender
// copies each message once, directly to where the receiver reads it. MPI would copy as often, but
// through system calls that take 1.5 to 2.6 times as long as memcpy.
//
// The memory is one anonymous file (memfd_create) that every rank maps as a whole and that gets its
// pages as they are used; it disappears with the last process that maps it. A receiver that posts a
// receive offers a region of the file for the message. A sender that finds the offer copies the
// bytes and reports that with an empty MPI message; a sender that finds no offer (it was faster, or
// cannot map the file) sends the data through MPI as usual. Neither side waits for the other.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/exec/transport.h"

namespace pipewright {

// Offer of one region of one message, in shared memory. The receiver may withdraw it and reuse the
// slot for another offer while the sender reads it, so the sender trusts only fields that it read
// while `state` stayed the same.
struct alignas(64) Offer {
  // 0: no offer. 2n: the n-th offer that this inbox has made. 2n + 1: the sender has filled it.
  std::atomic<uint64_t> state;
  std::atomic<uint64_t> tag;
  std::atomic<uint64_t> message;        // sequence number for this tag and pair of ranks
  std::atomic<uint64_t> region;         // index of the region in the bundle
  std::atomic<uint64_t> offset, bytes;  // position in the file

  bool taken() const { return state.load(std::memory_order_acquire) & 1; }
  void Withdraw() { state.store(0, std::memory_order_release); }
};

// Identifies an inbox to the other ranks: plain bytes, equal in every process of the host.
struct InboxName {
  int64_t process = 0;
  int64_t file = -1;  // file descriptor in that process; -1: no inbox
  uint64_t key = 0;   // random; also stored at the start of the file
  uint64_t size = 0;
};

// The inbox of this rank. Only the rank's thread calls it, but any thread may free memory.
class Inbox {
 public:
  // Creates an inbox for `senders` other ranks of the host. It has no memory if the system denies
  // it.
  explicit Inbox(int senders);
  ~Inbox();

  const InboxName& name() const;
  // Returns memory on a 4096-byte boundary, or null if none is left. It may outlive the inbox.
  std::shared_ptr<void> Allocate(size_t bytes);
  // Returns null if the region lies outside the inbox or this sender has too many open offers.
  Offer* Make(int sender, int tag, uint64_t message, size_t region, const Region& memory);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The inbox of another rank, as seen by its `sender`-th sender.
class Outbox {
 public:
  // Returns null if it cannot be mapped, for example if the ranks are in different PID namespaces.
  static std::unique_ptr<Outbox> Open(const InboxName& name, int sender);
  ~Outbox();

  // Copies `memory` to where the receiver wants it. Returns false if there is no offer (yet).
  bool Put(int tag, uint64_t message, size_t region, const Region& memory);

 private:
  Outbox(char* data, uint64_t size, int sender) : data_(data), size_(size), sender_(sender) {}
  char* const data_;
  const uint64_t size_;
  const int sender_;
};

}  // namespace pipewright
