// The guard is a small watchdog process beside each rank that outlives it. If the rank dies or is
// stopped without reporting an error, the guard reports what the rank was doing and makes sure that
// the other ranks of the host, and mpirun, end too.
#pragma once
#include <string>

#include "runtime/exec/status.h"

namespace pipewright {

struct GuardSettings {
  std::string program;     // prefix of messages
  double stall_limit = 0;  // a rank that is stopped for this many seconds counts as dead; 0: never
  bool keep_files = false;
};

class Guard {
 public:
  Guard() = default;
  // Forks the guard. Must be called before MPI is initialized and before threads are started.
  // `status` belongs to the caller and is stored in a file at `path` ("": without a name).
  Guard(const GuardSettings& settings, const StatusFile& status, const std::string& path);
  // Closes the pipe to the guard, which then reads the final status and exits. Waits for it.
  ~Guard();
  Guard(const Guard&) = delete;

  // Tells the guard that the status files of this host's ranks are now in `folder`; `token`
  // identifies the run, which has `ranks` ranks.
  void Join(const std::string& folder, const std::string& path, const std::string& token,
            int ranks);

 private:
  int pipe_ = -1, pid_ = -1;
};

// Returns true if the process has ended; a zombie has.
bool HasEnded(int pid);

// Records that a process reports why the run in `folder` ends. Returns true for the first.
bool ExplainEnd(const std::string& folder, const std::string& token);

// Returns true if some process has already reported why the run in `folder` ends.
bool EndIsExplained(const std::string& folder, const std::string& token);

}  // namespace pipewright
