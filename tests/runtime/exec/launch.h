// Starts whole jobs under mpirun, and looks at what they leave behind.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct Ended {
  int code = -1;  // 128: of a signal
  double seconds = 0;
  std::string output;  // both streams
  // Processes of the job that are still there, and are killed.
  std::vector<int> left;
  int Count(const std::string& text) const;
};

// `command` on so many ranks, with `environment` ("A=1 B=2") set. Ended by force after `limit`
// seconds, so that the test itself ends. Run once more where mpirun hangs after its ranks have ended.
Ended Launch(int ranks, const std::string& command, const std::string& environment = "",
             int limit = 1200);

// Whether a job that took `seconds` took at most `limit`, which is that of a quiet machine; of a
// busy one, as much longer as its processes take.
bool Soon(double seconds, double limit);

}  // namespace pipewright
