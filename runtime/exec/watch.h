// Looks after one process of an MPI run from before MPI is there until after it has gone: its
// status file, its guard, the signals it is sent, and whether the run as a whole still moves.
#pragma once
#include <memory>
#include <string>

#include "runtime/exec/stall.h"
#include "runtime/exec/transport.h"

namespace pipewright {

struct WatchOptions {
  std::string program;  // begins messages
  // Of the ranks' status files; "": one in /dev/shm, removed at the end.
  std::string folder;
  StallOptions stall = StallOptionsFromEnvironment();
};

// With PIPEWRIGHT_STATUS as folder.
WatchOptions WatchOptionsFromEnvironment(const std::string& program);

// One thread, which wakes four times a second, and one process (runtime/exec/guard.h).
//   SIGTERM: shows where the rank is, and dies of it at once.
//   SIGUSR1: sets the status' wish to stop, see runtime/exec/stop.h.
class Watch {
 public:
  // Before MPI is initialized and before there are threads.
  explicit Watch(const WatchOptions& options);
  // The rank has ended as it should, or has shown why not.
  ~Watch();

  // Collective. Gives the transport its status and the ranks' hosts.
  void Join(Transport& transport);

  // For a rank that is about to show an error and end all: an error of several ranks is shown by
  // the lowest of them, whose end ends the others. Returns when this rank is to do it.
  void GiveWay(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
