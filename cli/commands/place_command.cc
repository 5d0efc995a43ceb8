// `pipewright place`: assigns modules to devices.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/process/messages.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/commands/print_json.h"
#include "cli/numbers.h"
#include "plan/placement/package.h"
#include "plan/placement/place.h"
#include "plan/placement/process_bytes.h"
#include "plan/placement/residence.h"
#include "plan/placement/tree/checkpoint_tree.h"
#include "plan/placement/tree/export_tree.h"
#include "plan/placement/tree/read_tree.h"
#include "plan/placement/tree/script_tree.h"

namespace pipewright {
namespace {

struct PlaceRequest {
  std::string model, policy = "auto", dtype, check, output, conf, activations = "0";
  std::vector<std::string> max_memory, no_split, special_dtypes;
  PlaceOptions place;
  std::string compat;
  bool whole_process = false;
  bool json = false, sizes = false, largest_layer = false, tied = false;
};

bool IsPackage(const std::string& path) {
  return std::filesystem::exists(std::filesystem::path(path) / "manifest.json");
}

// Reads a package, a model file of torch.export or torch.jit, a module tree as JSON, or weights,
// whose names define the tree.
ModuleTree ReadModel(const std::string& path) {
  if (IsPackage(path)) return TreeOfPackage(ReadManifest(path));
  if (!std::filesystem::is_directory(path)) {
    MappedFile file(path);
    file.ReadOn(false);
    if (IsExport(file.bytes())) return TreeOfExport(file.bytes(), path);
    if (IsScript(file.bytes())) return TreeOfScript(file.bytes(), path);
    size_t first = file.bytes().find_first_not_of(" \t\r\n");
    // A safetensors file begins with a length whose upper bytes are zero.
    bool json = first != std::string_view::npos && file.bytes()[first] == '{' &&
                file.bytes().substr(0, 16).find('\0') == std::string_view::npos;
    if (json) {
      Json tree = ParseJson(file.bytes(), path);
      if (tree.contains("") || !tree.contains("weight_map")) return ReadModuleTree(tree, path);
    }
  }
  const Checkpoint checkpoint = OpenCheckpoint(path);
  for (const std::string& warning : checkpoint.warnings) PrintWarning(warning);
  return TreeOfCheckpoint(checkpoint);
}

std::vector<Budget> BudgetsOf(const PlaceRequest& options) {
  if (!options.max_memory.empty()) return ParseBudgets(options.max_memory);
  // Returns the free memory of this machine; accelerators must be listed by the user.
  std::ifstream memory("/proc/meminfo");
  std::string key, rest;
  while (memory >> key && key != "MemAvailable:") std::getline(memory, rest);
  int64_t available = 0;
  memory >> available;
  return ParseBudgets({"cpu=" + std::to_string(available * 1024)});
}

void PrintTable(const Placement& placement) {
  size_t width = 6;
  for (const PlacedPart& part : placement.parts) width = std::max(width, part.name.size());
  auto pad = [](const std::string& text, size_t to) {
    return text + std::string(to > text.size() ? to - text.size() : 0, ' ');
  };
  std::cout << pad("module", width) << "  device  size        why\n";
  for (const PlacedPart& part : placement.parts)
    std::cout << pad(part.name, width) << "  " << pad(part.device, 6) << "  "
              << pad(SizeText(part.bytes), 10) << "  " << part.why << "\n";
  std::cout << "\ndevice  limit       used        kept free   slots       process     peak\n";
  for (const BudgetUse& budget : placement.budgets)
    std::cout << pad(budget.device, 6) << "  "
              << pad(budget.limit < 0 ? "none" : SizeText(budget.limit), 10) << "  "
              << pad(SizeText(budget.used), 10) << "  " << pad(SizeText(budget.reserved), 10)
              << "  " << pad(SizeText(budget.slots), 10) << "  "
              << pad(SizeText(budget.process), 10) << "  " << SizeText(budget.Peak()) << "\n";
  std::cout << "peak: memory that a run takes, without activations: used, slots (for weights that "
               "are read from disk) and process\n";
  if (placement.moved_bound >= 0)
    std::cout << "\nloaded in each sweep: " << SizeText(placement.moved) << "; no placement within "
              << "these budgets loads less than " << SizeText(placement.moved_bound) << "\n";
  std::cout << "\n" << DeviceMapJson(placement.map).dump(2) << "\n";
}

Json PlacementJson(const Placement& placement) {
  Json budgets = Json::object();
  for (const BudgetUse& budget : placement.budgets)
    budgets[budget.device] = {{"limit", budget.limit < 0 ? Json() : Json(budget.limit)},
                              {"used", budget.used},
                              {"reserved", budget.reserved},
                              {"slots", budget.slots},
                              {"process", budget.process},
                              {"peak", budget.Peak()}};
  Json json{{"device_map", DeviceMapJson(placement.map)},
            {"uncovered", placement.uncovered},
            {"budgets", budgets},
            {"warnings", placement.warnings}};
  if (placement.moved_bound >= 0) {
    json["moved"] = placement.moved;
    json["lower_bound"] = placement.moved_bound;
  }
  return json;
}

void PrintSizes(const ModuleTree& tree, bool json) {
  Json sizes = Json::object();
  for (const auto& [name, bytes] : Sizes(tree)) {
    if (json)
      sizes[name] = bytes;
    else
      std::cout << (name.empty() ? "(all)" : name) << "  " << bytes << "\n";
  }
  if (json) PrintJson(sizes);
}

void PrintTied(const ModuleTree& tree, bool json) {
  if (json) return PrintJson(TiedGroups(tree));
  for (const auto& group : TiedGroups(tree)) std::cout << Join(group, "  ") << "\n";
}

void PrintLargest(const ModuleTree& tree, const PlaceRequest& options) {
  LargestLayer largest =
      FindLargestLayer(tree, SplitEntry(tree, {false, 0}), options.place.no_split);
  if (options.json) return PrintJson({{"bytes", largest.bytes}, {"names", largest.names}});
  std::cout << largest.bytes << "  " << Join(largest.names, "  ") << "\n";
}

// Writes the map as a conf of the package.
void WriteConfOf(const DeviceMap& map, const PlaceRequest& options) {
  if (options.conf.empty()) return;
  if (!IsPackage(options.model))
    throw UsageError("--conf", "requires a package, and " + options.model + " is not one");
  std::vector<std::string> warnings;
  const Conf conf =
      ConfOfDeviceMap(ReadManifest(options.model), map,
                      options.check.empty() ? "the device map" : options.check, warnings);
  for (const std::string& warning : warnings) PrintWarning(warning);
  WriteFile(options.conf, WriteConf(conf));
}

void Check(const ModuleTree& tree, const PlaceRequest& options) {
  DeviceMap map = ReadDeviceMap(ReadJson(options.check), options.check);
  if (!options.conf.empty()) return WriteConfOf(map, options);
  MapProblems problems = CheckDeviceMap(tree, map);
  if (IsPackage(options.model)) {  // the map may also use names of the source model
    MapProblems of_package = CheckPackageMap(ReadManifest(options.model), map);
    of_package.split_ties = problems.split_ties;
    problems = of_package;
  }
  if (options.json) {
    PrintJson({{"valid", problems.Usable()},
               {"uncovered", problems.uncovered},
               {"overlapping", problems.overlapping},
               {"unknown", problems.unknown},
               {"split_ties", problems.split_ties}});
  } else {
    for (const std::string& name : problems.uncovered)
      std::cout << "no device for " << name << "\n";
    for (const std::string& pair : problems.overlapping) std::cout << "overlap: " << pair << "\n";
    for (const std::string& name : problems.unknown)
      std::cout << "warning: the model has nothing named " << name << "\n";
    for (const std::string& tie : problems.split_ties) std::cout << "warning: " << tie << "\n";
    if (problems.Usable()) std::cout << options.check << ": every tensor has one device\n";
  }
  if (!problems.Usable()) throw CLI::RuntimeError(kFailure);
}

void Run(PlaceRequest options) {
  ModuleTree tree = ReadModel(options.model);
  for (const std::string& output : {options.output, options.conf})
    if (!output.empty())
      CheckWritable(output, {options.model, options.model + "/manifest.json", options.check});
  std::map<std::string, std::string> special;
  for (const std::string& text : options.special_dtypes)
    for (const std::string& part : Split(text, ',')) {
      size_t equals = part.find('=');
      if (equals == std::string::npos)
        throw UsageError("--special-dtype", Quote(part) + " is not NAME=DTYPE");
      special[part.substr(0, equals)] = part.substr(equals + 1);
    }
  std::vector<std::string> classes;
  for (const std::string& text : options.no_split)
    for (const std::string& name : Split(text, ',')) {
      const size_t begin = name.find_first_not_of(' ');
      if (begin == std::string::npos) continue;
      classes.push_back(name.substr(begin, name.find_last_not_of(' ') + 1 - begin));
    }
  options.place.no_split = classes;
  ApplyDtypes(tree, options.dtype, special);
  if (options.sizes) return PrintSizes(tree, options.json);
  if (options.tied) return PrintTied(tree, options.json);
  if (options.largest_layer) return PrintLargest(tree, options);
  if (!options.check.empty()) return Check(tree, options);

  options.place.budgets = BudgetsOf(options);
  options.place.activations = ParseSize(options.activations, "--activations");
  options.place.policy = PlacePolicyFromText(options.policy);
  options.place.compat_accelerate = options.compat == "accelerate";
  std::optional<Manifest> manifest;
  if (IsPackage(options.model)) manifest = ReadManifest(options.model);
  const Manifest* package = manifest ? &*manifest : nullptr;
  Placement placement;
  if (options.whole_process) {
    placement = PlaceProcesses(tree, options.place, package);
  } else {
    placement = Place(tree, options.place);
    CountProcesses(placement, package);
  }
  if (!options.output.empty()) {
    const std::string text = DeviceMapJson(placement.map).dump(2) + "\n";
    WriteFile(options.output, text);
    WriteFile(BudgetsPath(options.output), WriteBudgets(text, options.place.budgets));
  }
  if (placement.uncovered.empty()) WriteConfOf(placement.map, options);
  if (options.json) {
    PrintJson(PlacementJson(placement));
  } else {
    PrintTable(placement);
    for (const std::string& warning : placement.warnings)
      PrintWarning(warning);
    for (const std::string& name : placement.uncovered)
      std::cerr << "pipewright: no place for " << name << "\n";
  }
  if (!placement.uncovered.empty()) throw CLI::RuntimeError(kFailure);
}

}  // namespace

void AddPlaceCommand(CLI::App& app) {
  static PlaceRequest options;
  PlaceOptions& place = options.place;
  app.add_option("model", options.model,
                 "a package, a torch.export or torch.jit model, a module tree as JSON, or weights "
                 "(a file, an index or a folder)")
      ->required();
  app.add_option("--max-memory", options.max_memory,
                 "budgets: 0=10GiB,1=10GiB,cpu=30GiB,disk=1TB (default: this machine's free RAM)")
      ->allow_extra_args(false);
  app.add_option("--policy", options.policy,
                 "policy: auto, balanced, balanced_low_0, sequential or optimal")
      ->capture_default_str();
  app.add_option("--no-split", options.no_split, "module classes to keep whole: Block,...")
      ->allow_extra_args(false);
  app.add_option("--dtype", options.dtype,
                 "count wider floating-point tensors as this dtype");
  app.add_option("--special-dtype", options.special_dtypes,
                 "dtypes of single tensors: NAME=DTYPE,...")
      ->allow_extra_args(false);
  app.add_flag("--offload-buffers", place.offload_buffers,
               "also swap in the buffers of modules on cpu or disk");
  app.add_flag("--fallback", place.fallback,
               "give a device that would stay empty the first module that fits it");
  app.add_option("--compat", options.compat, "accelerate: compute budgets as accelerate does")
      ->check(CLI::IsMember({"accelerate"}));
  app.add_option("--activations", options.activations,
                 "memory that each accelerator needs besides weights (policy optimal)")
      ->capture_default_str();
  app.add_option("--slots", place.slots,
                 "number of swapped-in layers to keep room for (policy optimal)")
      ->check(InRange(1, 64))
      ->capture_default_str();
  app.add_flag("--whole-process", options.whole_process,
               "count the whole process against the budgets, including its slots");
  app.add_option("-o,--output", options.output,
                 "write the device map to this file, and its budgets to PATH.budgets");
  app.add_flag("--sizes", options.sizes, "print the bytes of each name and nothing else");
  app.add_flag("--largest-layer", options.largest_layer, "print the largest layer");
  app.add_flag("--tied", options.tied, "print the groups of names that share a tensor");
  app.add_option("--check", options.check, "check this device map instead of making one");
  app.add_option("--conf", options.conf,
                 "write the map, or that of --check, as a conf with one rank per device");
  app.add_flag("--json", options.json, "print JSON and nothing else");
  app.callback([] { Run(options); });
}

}  // namespace pipewright
