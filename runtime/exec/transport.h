// Defines the interface through which ranks exchange bytes: between MPI processes, between threads
// of one process, and later between GPUs over NCCL.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/exec/status.h"

namespace pipewright {

// Types of numbers that AllReduce adds. A complex number counts as two real ones.
enum class NumberType { kNone, kFloat16, kBFloat16, kFloat32, kFloat64 };

// Memory of one tensor, in the host's memory or on a device. A bundle travels along an edge, with
// one region per value; `owner` keeps the memory alive while any copy of the bundle exists.
struct Region {
  void* data = nullptr;
  size_t bytes = 0;
  bool on_device = false;
  NumberType type = NumberType::kNone;
};
struct Bundle {
  std::vector<Region> regions;
  std::shared_ptr<void> owner;
};

// A posted transfer. Once Test has returned true for it, it always does; from then on the transport
// holds no reference to the bundle, and what a receive brought is there.
class Completion {
 public:
  virtual ~Completion() = default;
};
using Token = std::shared_ptr<Completion>;

// Pairs (sender, receiver) of ranks.
using RankPairs = std::set<std::pair<int, int>>;

// The ranks whose values may stay on devices: those of messages, and those of each AllReduce.
struct DevicePeers {
  RankPairs pairs;
  std::set<std::vector<int>> sums;

  bool operator==(const DevicePeers&) const = default;
};

// The endpoint of one rank. Send and Recv post the transfer and return immediately. Transfers
// between two ranks with the same direction and tag match in the order in which they were posted.
// Both sides must have the same regions: a receive that gets fewer bytes fails; one that gets more
// may also fail, or under MPI corrupt memory. A bundle is kept until its transfer completes.
//
// Sends are synchronous: one completes only after its receive has been posted. A sender that counts
// its incomplete sends therefore knows how many messages the receiver has no memory for yet.
//
// Regions on a device may be used with ranks for which TakesDevices is true. Such a transfer comes
// after all work that this thread has launched on its current stream. What the thread launches
// there after a receive's WaitFor, or after Test has returned true, comes after the transfer; the
// host itself does not wait for the device. A send is complete once it has been launched; its
// memory may change only after ComeAfter.
//
// All calls must come from one thread, the rank's own.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Valid tags are 0 to max_tag(); MPI guarantees no more than this default.
  virtual int max_tag() const { return 32767; }

  // Allocates memory for receives, for transports with a preferred kind: other ranks of the host
  // can write to it directly. Null means that any memory will do. The memory may outlive the
  // transport.
  virtual std::shared_ptr<void> Memory(size_t /*bytes*/) { return nullptr; }
  // Returns true if messages to and from a rank may have regions on a device. The rank's answer for
  // this one is the same.
  virtual bool TakesDevices(int /*peer*/) const { return false; }
  virtual Token Send(int peer, int tag, Bundle bundle) = 0;
  virtual Token Recv(int peer, int tag, Bundle bundle) = 0;
  virtual bool Test(const Token& token) = 0;
  // Makes what this thread launches on its current stream come after a send that is complete, so
  // that its memory may change. Only for sends whose receiver waits for them: its host must not
  // need anything that comes after.
  virtual void ComeAfter(const Token& /*send*/) {}
  // Returns true if a send that is complete no longer uses its memory.
  virtual bool HasLeft(const Token& /*send*/) { return true; }
  // Adds the values of all `ranks` in place, in an order of the transport's choice. Bytes of
  // regions in host memory are flags: each is set if it is set on one of the ranks. All `ranks`
  // call this with the same list, tag and regions. The tag is not used by their messages meanwhile.
  // The result is there as after a receive. Only for lists of DevicePeers::sums; by default there
  // are none.
  virtual Token AllReduce(const std::vector<int>& ranks, int tag, Bundle bundle);

 protected:
  virtual void Wait(const Token& token) = 0;  // called by WaitFor
  // For transports that wrap another one.
  static void WaitIn(Transport& inner, const Token& token) { inner.Wait(token); }

 public:
  // A rank's thread waits for others in one of these ways only (AllGather is the third): each
  // records in the rank's status what it waits for, which is how a stall is noticed and described.
  // Each makes progress and throws Error if another rank has failed.
  void WaitFor(const Token& token, const Awaited& awaited);
  // Waits for something other than a transfer, such as a file: polls until `awaits` returns
  // kNothing.
  void WaitUntil(const std::function<Awaited()>& awaits,
                 std::chrono::microseconds poll = std::chrono::milliseconds(1));

  // Announces that the rank's thread will be busy: background progress, if any, starts now.
  virtual void BeginCompute() {}
  // The rank's thread may call this as often as it likes during its work: it makes progress if some
  // is due and costs almost nothing, whereas another thread would need the core.
  virtual void Progress() {}
  // Returns true if Progress does anything.
  virtual bool NeedsProgress() const { return false; }
  // Returns how many transfers posted here are incomplete. Makes progress. Throws Error if another
  // rank has failed.
  virtual size_t Pending() { return 0; }

  // Announces that the rank's thread is about to start an action of its list.
  virtual void BeginAction(int64_t /*step*/, int /*entry*/) {}

  // Returns the status in which this rank records what it does; it is discarded unless somebody
  // watches.
  StatusFile& status() { return *status_; }
  void SetStatus(StatusFile& status) { status_ = &status; }

  // Returns the host name of each rank; empty if unknown.
  const std::vector<std::string>& hosts() const { return hosts_; }
  void SetHosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }

  // Returns the `bytes` of every rank, by rank. Collective.
  virtual std::vector<std::string> AllGather(const std::string& bytes) = 0;

  // Shows `message` once and ends every rank of the run. Under MPI it does not return; among
  // threads it throws, here and in every other rank that waits or will wait.
  [[noreturn]] virtual void Abort(const std::string& message, int exit_code) = 0;

 private:
  StatusFile nothing_;
  StatusFile* status_ = &nothing_;
  std::vector<std::string> hosts_;
};

// Throws Error if a region of the bundle is on a device.
void RequireHostMemory(const Bundle& bundle);

// Passes all calls on to another transport, for those that change some of them. `inner` must
// outlive it, and is not used by others meanwhile.
class WrappedTransport : public Transport {
 public:
  explicit WrappedTransport(Transport& inner) : inner_(inner) {
    SetStatus(inner.status());
    SetHosts(inner.hosts());
  }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int max_tag() const override { return inner_.max_tag(); }
  std::shared_ptr<void> Memory(size_t bytes) override { return inner_.Memory(bytes); }
  bool TakesDevices(int peer) const override { return inner_.TakesDevices(peer); }
  Token Send(int peer, int tag, Bundle bundle) override {
    return inner_.Send(peer, tag, std::move(bundle));
  }
  Token Recv(int peer, int tag, Bundle bundle) override {
    return inner_.Recv(peer, tag, std::move(bundle));
  }
  bool Test(const Token& token) override { return inner_.Test(token); }
  void ComeAfter(const Token& send) override { inner_.ComeAfter(send); }
  bool HasLeft(const Token& send) override { return inner_.HasLeft(send); }
  Token AllReduce(const std::vector<int>& ranks, int tag, Bundle bundle) override {
    return inner_.AllReduce(ranks, tag, std::move(bundle));
  }
  void BeginCompute() override { inner_.BeginCompute(); }
  void Progress() override { inner_.Progress(); }
  bool NeedsProgress() const override { return inner_.NeedsProgress(); }
  size_t Pending() override { return inner_.Pending(); }
  void BeginAction(int64_t step, int entry) override { inner_.BeginAction(step, entry); }
  std::vector<std::string> AllGather(const std::string& bytes) override {
    return inner_.AllGather(bytes);
  }
  [[noreturn]] void Abort(const std::string& message, int exit_code) override {
    inner_.Abort(message, exit_code);
    std::abort();  // compilers do not know that virtual functions never return
  }

 protected:
  void Wait(const Token& token) override { WaitIn(inner_, token); }

 private:
  Transport& inner_;
};

// Tags that plans do not use, counted down from max_tag(). Kinds of messages that cannot be
// confused, because of their direction or order, share one.
constexpr int kStopTag = 0, kReportTag = 1, kLossTag = 2, kSizesTag = 3, kLinkTag = 4,
              kReservedTags = 5;

// Another rank has failed and reports it; this rank only has to stop.
class Aborted : public Error {
 public:
  using Error::Error;
};

// An error that every rank throws with the same text: it is shown once, and no rank has to abort
// the others.
class AgreedError : public Error {
 public:
  explicit AgreedError(const std::string& text) : AgreedError(std::vector<std::string>{text}) {}
  // Combines several errors, one per line.
  explicit AgreedError(std::vector<std::string> texts);

  // Returns "PROGRAM: TEXT" for each error, one per line.
  std::string Shown(const std::string& program) const;

 private:
  std::vector<std::string> texts_;
};

// Ends a phase (loading, agreeing, saving): each rank passes its error, or "". If any rank has an
// error, every rank throws the same AgreedError with all distinct messages, each with its ranks.
// Collective.
void Vote(Transport& transport, const std::string& phase, const std::string& error);

// Compares a hash over all ranks. If it differs, every rank throws AgreedError, which names the
// ranks that deviate from the majority. `what` names the hashed object ("package", "job.json").
// Collective.
void Agree(Transport& transport, uint64_t hash, const std::string& what);

// Returns text such as "ranks 0-2 on host-a, rank 3 on host-b", from the host or device of each
// rank.
std::string HostsText(const std::vector<std::string>& hosts);

}  // namespace pipewright
