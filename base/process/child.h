// Runs another program and waits for its end.
#pragma once
#include <csignal>
#include <limits>
#include <string>
#include <vector>

namespace pipewright {

struct ChildResult {
  int code = 0;  // as in a shell: 128 + signal, 127 if the program could not be started
  std::string out, err;
  bool ended = false;      // by the limits
  double cpu_seconds = 0;  // of the program and of those that it waited for
};

// A program that reaches a limit gets SIGTERM, and SIGKILL five seconds later.
struct ChildLimits {
  double seconds = std::numeric_limits<double>::infinity();
  const volatile std::sig_atomic_t* stop = nullptr;  // ends it when that is not 0
};

// Runs `command`: the program, found in PATH unless it has a slash, and its arguments. Its stdin is
// the file `input`. It gets SIGTERM if this process dies first. Throws Error if no process can be
// created.
ChildResult RunChild(const std::vector<std::string>& command, const ChildLimits& limits = {},
                     const std::string& input = "/dev/null");

}  // namespace pipewright
