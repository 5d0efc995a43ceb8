// pipewright conf PACKAGE --ranks N | --device-map FILE, -o FILE
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "plan/conf.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/manifest.h"
#include "plan/placement/package.h"
#include "plan/text.h"

namespace pipewright {

static void Write(const std::string& text, const std::string& output) {
  if (output.empty())
    std::cout << text;
  else
    WriteFile(output, text);
}

void AddConfCommand(CLI::App& app) {
  struct Options {
    std::string package, output, device_map;
    int ranks = 0;
  };
  auto options = std::make_shared<Options>();
  app.add_option("package", options->package, "the package")->required();
  auto* ranks =
      app.add_option("--ranks", options->ranks, "number of ranks; modules are grouped in order")
          ->check(CLI::Range(1, 1 << 20));
  app.add_option("--device-map", options->device_map,
                 "instead: a rank for each device of this map, as `pipewright place` writes it")
      ->excludes(ranks);
  app.add_option("-o,--output", options->output, "the conf to write; standard output if not given");
  app.callback([options] {
    if (options->ranks == 0 && options->device_map.empty())
      throw UsageError("conf", "give --ranks or --device-map");
    Manifest manifest = ReadManifest(options->package);
    const std::string& map = options->device_map;
    if (!map.empty())
      return Write(WriteConf(ConfOfDeviceMap(manifest, ReadDeviceMap(ReadJson(map), map), map)),
                   options->output);
    int modules = static_cast<int>(manifest.modules.size());
    if (options->ranks > modules)
      throw Error(options->package,
                  "has " + std::to_string(modules) + " modules, too few for " +
                      std::to_string(options->ranks) + " ranks",
                  "compile it with more cuts: --split equal:" + std::to_string(options->ranks));
    Write(WriteConf(GroupModules(modules, options->ranks)), options->output);
  });
}

}  // namespace pipewright
