// A transport whose ranks are threads of one process: for tests, for debugging, and for machines
// without mpirun.
#pragma once
#include <deque>
#include <functional>
#include <string>

#include "runtime/exec/transport.h"
#include "runtime/watch/stall.h"

namespace pipewright {

struct ThreadOptions {
  std::string status_folder = "";  // folder of the ranks' status files; "": in memory
  StallOptions stall = {0, 0};     // reports are written to stderr
  // Called every 250 ms with the status of all ranks, by the thread that looks for stalls.
  std::function<void(std::deque<StatusFile>&)> tick = nullptr;
};

// Runs `body` once per rank, rank 0 on the calling thread, and returns when all ranks have
// finished. If one fails, the others get Aborted from their next transport call, and this function
// throws the first error. Bundles must own their memory, because it may be read or written after
// the rank that posted it has failed.
void RunThreads(int ranks, const std::function<void(Transport&)>& body,
                const ThreadOptions& options = {});

}  // namespace pipewright
