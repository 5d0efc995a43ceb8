// Ranks as MPI processes.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "runtime/exec/transport.h"
#include "runtime/exec/watch.h"

namespace pipewright {

struct MpiOptions {
  // A communicator as MPI_Comm_c2f gives it; kWorld: all processes. Duplicated, never used itself.
  static constexpr int kWorld = -1;
  int communicator = kWorld;
  // Sends complete only when matched (MPI_Issend): finds orders that only buffering hides.
  bool synchronous_sends = false;
  // A thread makes progress from BeginCompute on, until the rank waits: when the rank's own thread
  // has not called Progress for some milliseconds, since a look of another thread costs the core
  // that computes some 20 microseconds. It runs only while a transfer larger than
  // `background_bytes` is under way (smaller ones need none: MPI has taken them when they are
  // posted).
  bool background_progress = true;
  size_t background_bytes = 4000;
  // Values of more than `background_bytes` between ranks of one host are copied once, by the
  // sender, into memory that both have mapped (inbox.h).
  bool inbox = true;
  // Longer messages travel in pieces, so that no single call of MPI copies for long.
  size_t piece_bytes = size_t{4} << 20;
};

// The defaults, changed by PIPEWRIGHT_MPI_SYNC=1, PIPEWRIGHT_MPI_THREAD=0, PIPEWRIGHT_MPI_INBOX=0
// and PIPEWRIGHT_MPI_PIECE (bytes); no inbox either where OMPI_MCA_btl leaves out shared memory.
// The same on all ranks.
MpiOptions MpiOptionsFromEnvironment();

// Initializes MPI where nobody has, and then finalizes it. Without mpirun this is a job of one
// rank. One lock guards MPI: whoever holds it makes progress for all transfers, the rank's thread
// while it waits, the background thread otherwise. Where there are more ranks on the host than
// cores, a rank that waits sleeps for ever longer moments.
class MpiTransport : public Transport {
 public:
  MpiTransport(int* argc, char*** argv, const MpiOptions& options = MpiOptionsFromEnvironment());
  // Gives transfers under way a second in which something moves, then drops what is left (after an
  // error that all ranks know of).
  ~MpiTransport() override;

  int rank() const override;
  int size() const override;
  int max_tag() const override;
  std::shared_ptr<void> Memory(size_t bytes) override;
  Token Send(int peer, int tag, Bundle bundle, void* stream = nullptr) override;
  Token Recv(int peer, int tag, Bundle bundle, void* stream = nullptr) override;
  bool Test(const Token& token) override;
  void Wait(const Token& token) override;
  void BeginCompute() override;
  bool NeedsProgress() const override;
  void Progress() override;
  size_t Pending() override;
  std::vector<std::string> AllGather(const std::string& bytes) override;
  // Writes `message` and a newline to stderr, then MPI_Abort; after a moment that grows with the
  // rank, so that an error of all ranks is shown once.
  [[noreturn]] void Abort(const std::string& message, int exit_code) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs `body` on the ranks that mpirun started and returns what it returns, watched over as `watch`
// says and with the faults of PIPEWRIGHT_FAULTS. Shows an AgreedError once ("PROGRAM: MESSAGE", by
// rank 0) and returns kFailure on every rank; any other exception aborts all ranks, shown alike.
int RunMpi(int* argc, char*** argv, const WatchOptions& watch,
           const std::function<int(Transport&)>& body,
           const MpiOptions& options = MpiOptionsFromEnvironment());
// With WatchOptionsFromEnvironment(program).
int RunMpi(int* argc, char*** argv, const char* program, const std::function<int(Transport&)>& body,
           const MpiOptions& options = MpiOptionsFromEnvironment());

}  // namespace pipewright
