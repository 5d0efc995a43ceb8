#include <CLI/CLI.hpp>
#include <iostream>

#include "compiler/commands.h"
#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

int RunProgram(const char* name, const char* description, const Command* commands, int count,
               int argc, char** argv, void (*add_global)(CLI::App& app)) {
  CLI::App app{description, name};
  app.set_version_flag("--version", std::string(name) + " " PIPEWRIGHT_VERSION);
  app.require_subcommand(1);
  if (add_global) add_global(app);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.push_back(commands[i].name);
    commands[i].add(*app.add_subcommand(commands[i].name, commands[i].description));
  }
  // CLI11 says only "a subcommand is required" for a misspelt one.
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    std::cerr << name << ": unknown command \"" << argv[1] << "\"" << Suggest(argv[1], names)
              << "\n  commands: " << Join(names, ", ") << "\n";
    return kUsage;
  }
  try {
    app.parse(argc, argv);
    return kSuccess;
  } catch (const CLI::RuntimeError& e) {  // a command that has said all there is to say
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kSuccess : kUsage;
  } catch (const UsageError& e) {
    std::cerr << name << ": " << e.what() << "\n";
    return kUsage;
  } catch (const std::exception& e) {
    std::cerr << name << ": " << e.what() << "\n";
    return kFailure;
  }
}

}  // namespace pipewright
