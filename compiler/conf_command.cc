// pipewright conf PACKAGE --ranks N -o FILE
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "plan/conf.h"
#include "plan/error.h"
#include "plan/manifest.h"
#include "plan/text.h"

namespace pipewright {

void AddConfCommand(CLI::App& app) {
  struct Options {
    std::string package, output;
    int ranks = 0;
  };
  auto options = std::make_shared<Options>();
  app.add_option("package", options->package, "the package")->required();
  app.add_option("--ranks", options->ranks, "number of ranks; modules are grouped in order")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("-o,--output", options->output, "the conf to write; standard output if not given");
  app.callback([options] {
    Manifest manifest = ReadManifest(options->package);
    int modules = static_cast<int>(manifest.modules.size());
    if (options->ranks > modules)
      throw Error(options->package,
                  "has " + std::to_string(modules) + " modules, too few for " +
                      std::to_string(options->ranks) + " ranks",
                  "compile it with more cuts: --split equal:" + std::to_string(options->ranks));
    const std::string text = WriteConf(GroupModules(modules, options->ranks));
    if (options->output.empty())
      std::cout << text;
    else
      WriteFile(options->output, text);
  });
}

}  // namespace pipewright
