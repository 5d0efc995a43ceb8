// Starts whole jobs under mpirun, and checks what they leave behind.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct Ended {
  int code = -1;  // 128: ended by a signal
  double seconds = 0;
  std::string output;  // both streams
  // Processes of the job that are still running, and are killed.
  std::vector<int> left;
  int Count(const std::string& text) const;
};

// Runs `command` on `ranks` ranks, with `environment` ("A=1 B=2") set. Ends it by force after
// `limit` seconds, so that the test itself ends. Runs it once more if mpirun hangs after its ranks
// have ended.
Ended Launch(int ranks, const std::string& command, const std::string& environment = "",
             int limit = 1200);

// Returns true if `seconds` is at most `limit`, which holds on a quiet machine; on a busy one, the
// limit grows as its processes slow down.
bool Soon(double seconds, double limit);

}  // namespace pipewright
