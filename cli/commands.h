// The commands of both programs.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct Command {
  std::string program, name, description;
  std::string example = "";  // what one would type
};

// Every command of both programs, in the order of their help. A command is registered here and in
// the `main` of its program, which RunProgram compares; RunProgram itself adds help and completion.
const std::vector<Command>& Commands();

}  // namespace pipewright
