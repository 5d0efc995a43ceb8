// pipewright conf PACKAGE --ranks N | --device-map FILE, -o FILE
// pipewright conf [PACKAGE] --check FILE
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <set>

#include "plan/conf.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/manifest.h"
#include "plan/placement/package.h"
#include "plan/profile/profile.h"
#include "plan/text.h"

namespace pipewright {

static void Write(const std::string& text, const std::string& output) {
  if (output.empty())
    std::cout << text;
  else
    WriteFile(output, text);
}

// What `file` says, where nothing is wrong with it: by itself, and for a package if there is one.
static std::string Checked(const std::string& file, const std::string& package, int ranks) {
  Conf conf = ReadConf(file);
  size_t modules = conf.module_to_stage.size();
  std::string text;
  if (!package.empty()) {
    Manifest manifest = ReadManifest(package);
    modules = manifest.modules.size();
    CheckConf(conf, static_cast<int>(modules), ranks > 0 ? ranks : -1, ModuleEdges(manifest), file);
    text = Counted(modules, "module");
  } else {
    text = Counted(modules, "entry") + " for modules, the last perhaps the loss's";
  }
  std::set<int> used;
  for (const auto& list : conf.stage_to_ranks) used.insert(list.begin(), list.end());
  if (package.empty() && ranks > 0) CheckLaunchedRanks(conf, ranks, file);
  return file + ": " + text + ", " + Counted(conf.stage_to_ranks.size(), "stage") + ", " +
         Counted(used.size(), "rank") + "\n";
}

void AddConfCommand(CLI::App& app) {
  struct Options {
    std::string package, output, device_map, check;
    int ranks = 0;
  };
  auto options = std::make_shared<Options>();
  app.add_option("package", options->package, "the package");
  auto* ranks =
      app.add_option("--ranks", options->ranks,
                     "number of ranks; modules are grouped in order, or the conf must need so many")
          ->check(CLI::Range(1, 1 << 20));
  app.add_option("--device-map", options->device_map,
                 "instead: a rank for each device of this map, as `pipewright place` writes it")
      ->excludes(ranks);
  app.add_option("--check", options->check,
                 "instead: say what is wrong with this conf, by itself or for the package");
  app.add_option("-o,--output", options->output, "the conf to write; standard output if not given");
  app.callback([options] {
    if (!options->check.empty())
      return Write(Checked(options->check, options->package, options->ranks), options->output);
    if (options->package.empty()) throw UsageError("conf", "give a package, or a conf to --check");
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
