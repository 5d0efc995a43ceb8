// The subcommands of `pipewright`: each has its own file and is listed once in cli/pipewright_main.cc.
#pragma once

namespace CLI {
class App;
}

namespace pipewright {

// `add` adds a command's options to `app` and a callback that does the work; the callback throws
// Error.
struct Command {
  const char* name;
  const char* description;
  void (*add)(CLI::App& app);
};

// Parses the command line, runs the command, and returns the exit code. `add_global` adds options
// of the program, which may precede or follow the command.
int RunProgram(const char* name, const char* description, const Command* commands, int count,
               int argc, char** argv, void (*add_global)(CLI::App& app) = nullptr);

}  // namespace pipewright
