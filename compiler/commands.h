// The subcommands of `pipewright`: each in its own file, listed once in compiler/main.cc.
#pragma once

namespace CLI {
class App;
}

namespace pipewright {

// A command adds its options to `app` and a callback that does the work; the callback throws Error.
struct Command {
  const char* name;
  const char* description;
  void (*add)(CLI::App& app);
};

// Parses, runs the command, returns the exit code. `add_global` adds options of the program, which
// may stand before and behind the command.
int RunProgram(const char* name, const char* description, const Command* commands, int count,
               int argc, char** argv, void (*add_global)(CLI::App& app) = nullptr);

}  // namespace pipewright
