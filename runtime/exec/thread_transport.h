// Ranks as threads of one process: for tests, for debugging, for machines without mpirun.
#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <string>

#include "runtime/exec/stall.h"
#include "runtime/exec/transport.h"

namespace pipewright {

struct ThreadOptions {
  // A send completes only when its receive is posted. Otherwise messages up to `eager_bytes` are
  // copied aside and complete at once, as MPI does.
  bool synchronous_sends = false;
  size_t eager_bytes = 4096;
  std::string status_folder = "";  // of the ranks' status files; "": they are kept in memory
  StallOptions stall = {0, 0};     // reports go to stderr
  // Called with the statuses of all ranks every 250 ms by the thread that looks for stalls.
  std::function<void(std::deque<StatusFile>&)> tick = nullptr;
};

// Runs `body` once a rank, rank 0 on the calling thread, and returns when all have ended. When one
// fails, the others get Aborted at their next call of the transport; the first error is thrown
// here. Bundles must own their memory: it may be read or written after the rank that posted it has
// failed.
void RunThreads(int ranks, const std::function<void(Transport&)>& body,
                const ThreadOptions& options = {});

}  // namespace pipewright
