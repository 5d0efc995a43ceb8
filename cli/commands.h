// Lists the commands of both programs.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct Command {
  std::string program, name, description;
  std::string example = "";  // a command line to show in the help
};

// Returns every command of both programs, in the order of their help. A command is registered here
// and in the `main` of its program; RunProgram checks that both agree, and adds help and completion
// itself.
const std::vector<Command>& Commands();

// Returns what the help of a command ends with: an example of its use.
std::string ExampleText(const std::string& command_line);

}  // namespace pipewright
