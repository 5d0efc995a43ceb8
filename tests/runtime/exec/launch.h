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

// `command` on so many ranks, with `environment` ("A=1 B=2") set. Ended by force after `limit` seconds.
Ended Launch(int ranks, const std::string& command, const std::string& environment = "",
             int limit = 60);

}  // namespace pipewright
