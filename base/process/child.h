// Runs another program and waits for its end.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct ChildResult {
  int code = 0;  // as in a shell: 128 + signal, 127 if the program could not be started
  std::string out, err;
};

// Runs `command`: the program, found in PATH unless it has a slash, and its arguments. Its stdin is
// empty. It gets SIGTERM if this process dies first. Throws Error if no process can be created.
ChildResult RunChild(const std::vector<std::string>& command);

}  // namespace pipewright
