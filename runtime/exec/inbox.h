// Memory of a rank that the other ranks of its host write to: a value that is sent between two of
// them is copied once, by the sender, to where the receiver reads it. MPI copies as often, but by
// calls of the system that take 1.5 to 2.6 times as long as memcpy.
//
// The memory is one nameless file (memfd_create), mapped whole by everybody and filled as it is
// used; it is gone with the last process that has it mapped. A receiver offers a region of it for
// a message that it has posted a receive for. A sender that finds the offer copies and then says so
// by a message of MPI without content; one that finds none (it was faster, or cannot map the file)
// sends by MPI as ever. Nobody waits for the other.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/exec/transport.h"

namespace pipewright {

// Of one region of one message, in shared memory. The receiver may withdraw it and make another one
// in its place while the sender reads: the sender believes only what it has read while the state
// stayed the same.
struct alignas(64) Offer {
  // 0: none. 2n: the n-th that this inbox has made. 2n + 1: the sender has filled it.
  std::atomic<uint64_t> state;
  std::atomic<uint64_t> tag;
  std::atomic<uint64_t> message;        // the how-manieth between the two ranks with this tag
  std::atomic<uint64_t> region;         // its place in the bundle
  std::atomic<uint64_t> offset, bytes;  // in the file

  bool taken() const { return state.load(std::memory_order_acquire) & 1; }
  void Withdraw() { state.store(0, std::memory_order_release); }
};

// How others find an inbox: plain bytes, the same in every process of the host.
struct InboxName {
  int64_t process = 0;
  int64_t file = -1;  // descriptor there; -1: no inbox
  uint64_t key = 0;   // random, and at the start of the file
  uint64_t size = 0;
};

// This rank's own. Calls come from the rank's thread, but memory is freed by any.
class Inbox {
 public:
  // For `senders` other ranks of the host. Has no memory where the system does not give it.
  explicit Inbox(int senders);
  ~Inbox();

  const InboxName& name() const;
  // On a 4096-byte boundary; null where there is none left. Lives on its own.
  std::shared_ptr<void> Allocate(size_t bytes);
  // Null where the region lies elsewhere, or too many are offered to this sender.
  Offer* Make(int sender, int tag, uint64_t message, size_t region, const Region& memory);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The inbox of another rank, as its `sender`-th sender sees it.
class Outbox {
 public:
  // Null where it cannot be mapped: the ranks see different processes, say.
  static std::unique_ptr<Outbox> Open(const InboxName& name, int sender);
  ~Outbox();

  // Copies `memory` to where the receiver wants it; false where it has not offered that (yet).
  bool Put(int tag, uint64_t message, size_t region, const Region& memory);

 private:
  Outbox(char* data, uint64_t size, int sender) : data_(data), size_(size), sender_(sender) {}
  char* const data_;
  const uint64_t size_;
  const int sender_;
};

}  // namespace pipewright
