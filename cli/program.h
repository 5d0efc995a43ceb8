// Runs the command that a program's command line names.
#pragma once
#include <map>
#include <string>

namespace CLI {
class App;
}

namespace pipewright {

// Adds a command's options to `app`, and a callback that does the work; the callback throws Error.
using AddCommand = void (*)(CLI::App& app);

// Parses the command line, runs the command, and returns the exit code: kFailure also if standard
// output could not be written. `adders` maps names of commands to functions; a build without
// LibTorch lacks some. `add_global` adds options of the program, which may precede or follow the
// command.
int RunProgram(const std::string& name, const std::string& description,
               const std::map<std::string, AddCommand>& adders, int argc, char** argv,
               AddCommand add_global = nullptr);

}  // namespace pipewright
