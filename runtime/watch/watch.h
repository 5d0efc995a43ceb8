// Watches one process of an MPI run, from before MPI is initialized until after it is finalized:
// its status file, its guard process, its signals, and whether the run as a whole makes progress.
#pragma once
#include <memory>
#include <string>

#include "runtime/exec/transport.h"
#include "runtime/watch/stall.h"

namespace pipewright {

// Shown by a run that was told to end and first finishes its step.
inline constexpr char kEndsAfterStep[] =
    "  the run ends this step first and keeps what it has; a second signal ends it at once\n";

// Returns true if a signal that ends the rank should first let it finish its step: it has begun
// one, and this is the first request.
bool StopsFirst(const RankStatus& rank);

struct WatchOptions {
  std::string program;  // prefix of messages
  // Folder of the ranks' status files. "" means a folder in /dev/shm that is removed at the end.
  std::string folder;
  StallOptions stall = StallOptionsFromEnvironment();
  bool stops = false;  // on request, ends the run after a step, once the first has begun
};

// Returns options whose folder is PIPEWRIGHT_STATUS.
WatchOptions WatchOptionsFromEnvironment(const std::string& program);

// Uses one thread, which wakes four times a second, and one process (runtime/watch/watchdog.h). On
// SIGTERM or SIGINT it shows where the rank is, and requests a stop in the status, see
// runtime/watch/stop.h; it ends the rank at once the second time, or if there is no step to end.
// On SIGUSR1 it requests a stop.
class Watch {
 public:
  // Must be called before MPI is initialized and before threads are started.
  explicit Watch(const WatchOptions& options);
  // The rank must have finished normally, or have reported its error.
  ~Watch();

  // Gives the transport its status and the host names of the ranks. Collective.
  void Join(Transport& transport);

  // Called by the rank that shows an error on which all ranks agree.
  void Explain();

  // Called by a rank that is about to show an error and abort the run. If several ranks have an
  // error, only the lowest shows it, and its exit ends the others. Returns if this rank is the one.
  void GiveWay(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
