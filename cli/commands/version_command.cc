// `pipewright version`.
#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/commands.h"

namespace pipewright {

void AddVersionCommand(CLI::App& app) {
  app.callback([] { std::cout << "pipewright " PIPEWRIGHT_VERSION "\n"; });
}

}  // namespace pipewright
