// A small process beside each rank that outlives it: when the rank dies without a word, or stops,
// the guard says what it was at and sees to it that the other ranks of the host, and what started
// them, end too.
#pragma once
#include <string>

#include "runtime/exec/status.h"

namespace pipewright {

struct GuardSettings {
  std::string program;     // begins messages
  double stall_limit = 0;  // seconds after which a stopped rank counts as dead; 0: never
  bool keep_files = false;
};

class Guard {
 public:
  Guard() = default;
  // Forks: before MPI is initialized and before there are threads. `status` is the caller's, in a
  // file at `path`. The guard takes everything from it but the folder, see Join.
  Guard(const GuardSettings& settings, const StatusFile& status, const std::string& path);
  // Closes the pipe between both: the guard looks at the status and ends. Waits for it.
  ~Guard();
  Guard(const Guard&) = delete;

  // The status files of the run's ranks on this host are now in `folder`; `token` names the run.
  void Join(const std::string& folder, const std::string& path, const std::string& token);

 private:
  int pipe_ = -1, pid_ = -1;
};

// Whether somebody has said already why the run in `folder` ends.
bool EndIsExplained(const std::string& folder, const std::string& token);

}  // namespace pipewright
