// pipewright conf PACKAGE --ranks N [--stages S] [--placement P] | --device-map FILE, -o FILE
// pipewright conf [PACKAGE] --check FILE
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_path.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/json_comments.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "cli/numbers.h"
#include "formats/conf.h"
#include "formats/manifest.h"
#include "formats/profile/profile.h"
#include "plan/placement/package.h"
#include "plan/schedules/schedule.h"
#include "runtime/trial/check_code.h"

namespace pipewright {

static void Write(const std::string& text, const std::string& output) {
  if (output.empty())
    std::cout << text;
  else
    WriteFile(output, text);
}

static std::string StagesAndRanks(const Conf& conf) {
  std::set<int> used;
  for (const auto& list : conf.stage_to_ranks) used.insert(list.begin(), list.end());
  return Counted(conf.stage_to_ranks.size(), "stage") + ", " + Counted(used.size(), "rank");
}

static void WriteMade(const Conf& conf, const std::string& output) {
  std::error_code none;
  if (std::filesystem::is_regular_file(output, none)) {
    const std::string there = ReadFile(output);
    if (WithoutComments(there) != there)
      throw Error(output, "has comments, which would be lost", "write another file with -o");
  }
  Write(WriteConf(conf), output);
  // If the output is a pipe or /dev/stdout, only the conf is written to it.
  if (!output.empty() && !IsStream(output))
    std::cout << output << ": " << Counted(conf.module_to_stage.size(), "module") << ", "
              << StagesAndRanks(conf) << "\n";
}

// Returns a summary of `file` if it is valid by itself and, if given, for the package.
static std::string Checked(const std::string& file, const std::string& package, int ranks) {
  Conf conf = ReadConf(file);
  size_t modules = conf.module_to_stage.size();
  std::string text;
  if (!package.empty()) {
    Manifest manifest = ReadManifest(package);
    modules = manifest.modules.size();
    CheckConf(conf, static_cast<int>(modules), ranks > 0 ? ranks : -1, ModuleEdges(manifest), file);
    for (const std::string& warning : CheckCode(package, manifest))
      PrintWarning(warning);
    text = Counted(modules, "module");
  } else {
    text = Counted(modules, "entry") + " for modules, possibly including one for the loss";
  }
  if (package.empty() && ranks > 0) CheckLaunchedRanks(conf, ranks, file);
  return file + ": " + text + ", " + StagesAndRanks(conf) + "\n";
}

// Groups modules in order into stages and places the stages on ranks according to `placement` ("":
// one per rank, or like "loop"). If `stages` is 0, there are two per rank for "v", as many as the
// placement lists, or otherwise one per rank.
static Conf Grouped(const std::string& package, int modules, int ranks, int stages,
                    const std::string& placement) {
  if (stages == 0 && placement.find_first_of("0123456789") != std::string::npos)
    stages = 1 + static_cast<int>(std::count(placement.begin(), placement.end(), ','));
  if (stages == 0) stages = placement == "v" ? 2 * ranks : ranks;
  if (stages > modules)
    throw Error(package,
                "has " + Counted(modules, "module") + ", too few for " +
                    (stages == ranks ? Counted(ranks, "rank") : Counted(stages, "stage")),
                "compile it with more cuts: --split equal:" + std::to_string(stages));
  Conf conf = GroupModules(modules, stages);
  conf.stage_to_ranks = ParsePlacement(placement.empty() ? "loop" : placement, ranks, stages);
  CheckPlacement(conf.stage_to_ranks, ranks);
  return conf;
}

void AddConfCommand(CLI::App& app) {
  struct Options {
    std::string package, output, device_map, check, placement;
    int ranks = 0, stages = 0;
  };
  auto options = std::make_shared<Options>();
  app.add_option("package", options->package, "the package");
  auto* ranks =
      app.add_option(
             "--ranks", options->ranks,
             "number of ranks to group the modules for; with --check, the number to require")
          ->check(AtLeast(1, 1 << 20));
  app.add_option("--stages", options->stages, "number of stages (default: given by the placement)")
      ->check(AtLeast(1, 1 << 20))
      ->needs(ranks);
  app.add_option("--placement", options->placement,
                 "which rank runs which stage: loop (default), v (forward and back, two stages per "
                 "rank, as for zbv), both, or a rank for each stage: \"0,1,1,0\"")
      ->needs(ranks);
  app.add_option("--device-map", options->device_map,
                 "make one rank for each device of this map from `pipewright place`")
      ->excludes(ranks);
  app.add_option("--check", options->check,
                 "check this conf instead of making one, by itself or for the package");
  app.add_option("-o,--output", options->output, "the conf to write (default: standard output)");
  app.callback([options] {
    std::error_code none;
    if (!options->check.empty() &&
        std::filesystem::equivalent(options->check, options->output, none))
      throw Error("-o " + options->output,
                  "is the conf to check: the output of --check would replace it",
                  "leave out -o");
    if (!options->output.empty())
      CheckWritable(options->output, {options->package + "/manifest.json", options->device_map});
    const bool made = options->stages > 0 || !options->placement.empty();
    if (!options->check.empty() && (made || !options->device_map.empty()))
      throw UsageError("--check",
                       std::string("checks an existing conf; ") +
                           (options->stages > 0           ? "--stages"
                            : !options->placement.empty() ? "--placement"
                                                          : "--device-map") +
                           " is for a new one",
                       "leave out one of them; --ranks N checks that it is for N ranks");
    if (!options->check.empty())
      return Write(Checked(options->check, options->package, options->ranks), options->output);
    if (options->package.empty()) throw UsageError("conf", "give a package, or a conf to --check");
    if (options->ranks == 0 && options->device_map.empty())
      throw UsageError("conf", "give --ranks or --device-map");
    Manifest manifest = ReadManifest(options->package);
    const std::string& map = options->device_map;
    if (!map.empty()) {
      std::vector<std::string> warnings;
      const Conf conf = ConfOfDeviceMap(manifest, ReadDeviceMap(ReadJson(map), map), map, warnings);
      for (const std::string& warning : warnings) PrintWarning(warning);
      return WriteMade(conf, options->output);
    }
    WriteMade(Grouped(options->package, static_cast<int>(manifest.modules.size()), options->ranks,
                      options->stages, options->placement),
              options->output);
  });
}

}  // namespace pipewright
