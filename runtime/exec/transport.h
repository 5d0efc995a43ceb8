// How ranks exchange bytes: MPI processes, threads of one process, and later GPUs over NCCL.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/error.h"
#include "runtime/exec/status.h"

namespace pipewright {

// Memory of one tensor. A bundle is what travels along an edge: one region a value; `owner` keeps
// the memory alive as long as a copy of the bundle exists.
struct Region {
  void* data = nullptr;
  size_t bytes = 0;
};
struct Bundle {
  std::vector<Region> regions;
  std::shared_ptr<void> owner;
};

// A posted transfer: polled by the host, or waited for by a device stream.
class Completion {
 public:
  virtual ~Completion() = default;
};
using Token = std::shared_ptr<Completion>;

// One rank's end. Send and Recv post and return at once; transfers between two ranks with the same
// direction and tag match in the order in which they were posted. Both must have the same regions:
// a receive that got less fails, one that got more may too, or damage memory under MPI. A bundle is
// kept until its transfer has completed. `stream` is the device stream that made (or will use) the
// data: null on the CPU. Calls come from one thread, the rank's own.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Tags are 0..max_tag(); MPI promises no more than this.
  virtual int max_tag() const { return 32767; }

  // Memory for what is received from others, where some is better than other memory: another rank
  // of the host can write to it. Null: take any. Outlives the transport where it must.
  virtual std::shared_ptr<void> Memory(size_t /*bytes*/) { return nullptr; }
  virtual Token Send(int peer, int tag, Bundle bundle, void* stream = nullptr) = 0;
  virtual Token Recv(int peer, int tag, Bundle bundle, void* stream = nullptr) = 0;
  virtual bool Test(const Token& token) = 0;
  // Makes progress until `token` has completed. Throws Error when another rank has failed.
  virtual void Wait(const Token& token) = 0;
  // The same, and meanwhile this rank's status says what for: a stall of all ranks is told by it.
  void WaitFor(const Token& token, const Awaited& awaited);

  // The rank's thread will be busy with something else: whoever makes progress meanwhile starts
  // now.
  virtual void BeginCompute() {}
  // Called by the rank's thread between pieces of its work, as often as it likes: makes progress
  // where some is due. Costs next to nothing, where another thread would first need the core.
  virtual void Progress() {}
  // Whether Progress does anything.
  virtual bool NeedsProgress() const { return false; }
  // How many transfers posted here have not completed. Makes progress.
  virtual size_t Pending() { return 0; }

  // The rank's thread is about to begin an action of its list.
  virtual void BeginAction(int64_t /*step*/, int /*entry*/) {}

  // Where this rank says what it does; keeps nothing unless somebody watches.
  StatusFile& status() { return *status_; }
  void SetStatus(StatusFile& status) { status_ = &status; }

  // The host of each rank; empty where nobody has asked.
  const std::vector<std::string>& hosts() const { return hosts_; }
  void SetHosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }

  // Every rank's `bytes`, by rank. Collective.
  virtual std::vector<std::string> AllGather(const std::string& bytes) = 0;

  // Shows `message` once and ends every rank of the run: MPI does not return from it; among threads
  // it throws, here and in every other rank that waits or will wait.
  [[noreturn]] virtual void Abort(const std::string& message, int exit_code) = 0;

 private:
  StatusFile nothing_;
  StatusFile* status_ = &nothing_;
  std::vector<std::string> hosts_;
};

// Tags that plans leave free, counted down from max_tag(): each kind of message beside a plan has
// its own.
constexpr int kStopTag = 0, kReportTag = 1, kLossTag = 2, kSizesTag = 3, kReservedTags = 4;

// Another rank has failed and shows why; this one only has to stop.
class Aborted : public Error {
 public:
  using Error::Error;
};

// Every rank throws this one with the same text: whoever reports it does so once, and no rank has
// to abort the others.
class AgreedError : public Error {
 public:
  explicit AgreedError(const std::string& text) : AgreedError(std::vector<std::string>{text}) {}
  // Several, one a line.
  explicit AgreedError(std::vector<std::string> texts);

  // "PROGRAM: TEXT", one a line.
  std::string Shown(const std::string& program) const;

 private:
  std::vector<std::string> texts_;
};

// Ends a phase (loading, agreeing, saving): each rank brings its error, or "". When any has one,
// throws on every rank the same AgreedError with all distinct messages, each naming its ranks.
// Collective.
void Vote(Transport& transport, const std::string& phase, const std::string& error);

// Compares a hash over all ranks; where they differ, throws AgreedError on every rank, naming those
// that are not as most are. `what` names what was hashed ("package", "job.json"). Collective.
void Agree(Transport& transport, uint64_t hash, const std::string& what);

// "ranks 0-2 on host-a, rank 3 on host-b".
std::string HostsText(const std::vector<std::string>& hosts);

}  // namespace pipewright
