// Runs another program and waits for its end.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct ChildResult {
  int code = 0;  // as in a shell: 128 + signal, 127 where the program could not be started
  std::string out, err;
};

// `command`: the program, found in PATH unless it has a slash, and its arguments. It gets nothing
// to read. It is ended (SIGTERM) if this process dies first. Throws Error where no process can be
// made.
ChildResult RunChild(const std::vector<std::string>& command);

}  // namespace pipewright
