// MpiTransport: a transport whose ranks are MPI processes.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "runtime/exec/transport.h"
#include "runtime/watch/watch.h"

namespace pipewright {

struct MpiOptions {
  // A communicator in the form of MPI_Comm_c2f; kWorld means all processes. It is duplicated, never
  // used directly.
  static constexpr int kWorld = -1;
  int communicator = kWorld;
  // A thread makes progress from BeginCompute until the rank waits again. It steps in only if the
  // rank's own thread has not called Progress for some milliseconds, because each test by another
  // thread costs the computing core about 20 microseconds. It runs only while a transfer larger
  // than `background_bytes` is in flight; MPI completes smaller ones when they are posted.
  bool background_progress = true;
  size_t background_bytes = 4000;
  // Messages of more than `background_bytes` between ranks of one host are copied once, by the
  // sender, into shared memory (inbox.h).
  bool inbox = true;
  // Longer messages travel in pieces, so that no single MPI call spends long on copying.
  size_t piece_bytes = size_t{4} << 20;
};

// Returns the defaults, changed by PIPEWRIGHT_MPI_THREAD=0, PIPEWRIGHT_MPI_INBOX=0 and
// PIPEWRIGHT_MPI_PIECE (bytes). The inbox is also off if OMPI_MCA_btl excludes shared memory. Must
// be equal on all ranks.
MpiOptions MpiOptionsFromEnvironment();

// Initializes MPI if needed, and in that case also finalizes it. Without mpirun this is a job
// of one rank. One lock guards MPI; its holder makes progress for all transfers: the rank's thread
// while it waits, the background thread otherwise. If the host has more ranks than cores, a waiting
// rank sleeps for increasing intervals.
class MpiTransport : public Transport {
 public:
  MpiTransport(int* argc, char*** argv, const MpiOptions& options = MpiOptionsFromEnvironment());
  // Waits while transfers in flight still move (at most one second without movement), then drops
  // the rest (after an error that all ranks know of).
  ~MpiTransport() override;

  int rank() const override;
  int size() const override;
  int max_tag() const override;
  std::shared_ptr<void> Memory(size_t bytes) override;
  Token Send(int peer, int tag, Bundle bundle) override;
  Token Recv(int peer, int tag, Bundle bundle) override;
  bool Test(const Token& token) override;
  void BeginCompute() override;
  bool NeedsProgress() const override;
  void Progress() override;
  size_t Pending() override;
  std::vector<std::string> AllGather(const std::string& bytes) override;
  // Writes `message` and a newline to stderr and calls MPI_Abort. Higher ranks delay this slightly,
  // so that an error common to all ranks is shown once.
  [[noreturn]] void Abort(const std::string& message, int exit_code) override;

 private:
  void Wait(const Token& token) override;

  struct State;
  std::unique_ptr<State> state_;
};

// Runs `body` on the ranks that mpirun started and returns its result, with a watchdog as set by
// `watch` and with the faults of PIPEWRIGHT_FAULTS. An AgreedError is shown once ("PROGRAM:
// MESSAGE", by rank 0), and every rank returns kFailure; any other exception is shown in the same
// form and aborts all ranks.
int RunMpi(int* argc, char*** argv, const WatchOptions& watch,
           const std::function<int(Transport&)>& body,
           const MpiOptions& options = MpiOptionsFromEnvironment());
// Does the same with WatchOptionsFromEnvironment(program).
int RunMpi(int* argc, char*** argv, const char* program, const std::function<int(Transport&)>& body,
           const MpiOptions& options = MpiOptionsFromEnvironment());

}  // namespace pipewright
