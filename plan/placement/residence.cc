#include "plan/placement/residence.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"

namespace pipewright {

namespace {

// Returns true if `key` is the name or a module that contains it.
bool Covers(const std::string& key, const std::string& name) {
  return !DeviceOf({{key, "disk"}}, name).empty();
}

struct Names {
  std::map<std::string, std::vector<std::string>> tied;  // name -> all names of its tensor
  std::set<std::string> known;                           // names that a key may have

  explicit Names(const Manifest& manifest) {
    for (const std::vector<std::string>& group : manifest.tied)
      for (const std::string& name : group) {
        tied[name] = group;
        AddPrefixes(name);
      }
    known.insert("");
    for (const ModuleInfo& module : manifest.modules) {
      known.insert(module.name);
      for (const std::string& name : module.covers) AddPrefixes(name);
      for (const WeightInfo& weight : module.held) {
        known.insert(module.name + "." + weight.name);
        if (weight.kind != WeightKind::kConstant) AddPrefixes(weight.name);
      }
    }
  }

  void AddPrefixes(const std::string& name) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      known.insert(name.substr(0, dot));
    known.insert(name);
  }
};

// Returns the entry with the longest key that covers a name; null if there is none.
const std::pair<std::string, std::string>* EntryOf(const DeviceMap& map, const std::string& name) {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& entry : map)
    if (Covers(entry.first, name) && (!best || entry.first.size() >= best->first.size()))
      best = &entry;
  return best;
}

// Returns the entry that covers a weight; null if there is none.
const std::pair<std::string, std::string>* EntryOfWeight(const DeviceMap& map, const Names& names,
                                                         const ModuleInfo& module,
                                                         const WeightInfo& weight) {
  const auto* best = EntryOf(map, module.name + "." + weight.name);
  if (weight.kind == WeightKind::kConstant) return best;
  const auto* source = EntryOf(map, weight.name);
  auto tied = names.tied.find(weight.name);
  if (!source && tied != names.tied.end())
    for (const std::string& other : tied->second)
      if (!source) source = EntryOf(map, other);
  if (source && (!best || source->first.size() > best->first.size())) best = source;
  return best;
}

bool IsNumber(const std::string& device) { return device != "cpu" && device != "disk"; }

// Returns the advice for a weight on another device than those before it in its module of the
// package. A weight of the model itself has no submodule to cut before.
std::string CureOfTwoDevices(const std::string& weight) {
  const size_t dot = weight.rfind('.');
  if (dot == std::string::npos) return "put them on one device";
  return "cut the package where the map changes: pipewright compile --split modules:" +
         weight.substr(0, dot);
}

std::string Few(const std::vector<std::string>& names) {
  std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<long>(std::min<size_t>(names.size(), 5)));
  std::string text = Join(first, ", ");
  return names.size() > first.size()
             ? text + " and " + std::to_string(names.size() - first.size()) + " more"
             : text;
}

using Devices = std::vector<std::vector<std::string>>;  // [module][held]

Devices DevicesOf(const Manifest& manifest, const DeviceMap& map, MapProblems& problems) {
  const Names names(manifest);
  const std::vector<std::string> known(names.known.begin(), names.known.end());
  for (const auto& [key, device] : map) {
    if (!names.known.count(key)) problems.unknown.push_back(Quote(key) + Suggest(key, known));
    for (const auto& [other, unused] : map)
      if (other != key && Covers(other, key))
        problems.overlapping.push_back(Quote(other) + " and " + Quote(key));
  }
  Devices devices;
  for (const ModuleInfo& module : manifest.modules) {
    std::vector<std::string>& of = devices.emplace_back();
    for (const WeightInfo& weight : module.held) {
      const auto* entry = EntryOfWeight(map, names, module, weight);
      of.push_back(entry ? entry->second : "");
      if (of.back().empty() && weight.kind != WeightKind::kConstant && weight.persistent)
        problems.uncovered.push_back(weight.name);
    }
  }
  return devices;
}

}  // namespace

Devices DevicesOfWeights(const Manifest& manifest, const DeviceMap& map, const std::string& path,
                         std::vector<std::string>& warnings) {
  MapProblems problems;
  Devices devices = DevicesOf(manifest, map, problems);
  const auto& [uncovered, overlapping, unknown, split_ties] = problems;
  if (!overlapping.empty())
    throw Error(path, "keys within keys: " + Few(overlapping), "leave out one of each pair");
  if (!uncovered.empty())
    throw Error(path, "no device for " + Few(uncovered),
                !unknown.empty()
                    ? "the map names " + Few(unknown) + ", which the model does not have"
                : map.empty() ? "add them, or \"\" for all"
                              : "add them");  // "" beside other keys is refused
  for (const std::string& key : unknown)
    warnings.push_back(path + ": the map names " + key + ", which the model does not have");
  return devices;
}

MapProblems CheckPackageMap(const Manifest& manifest, const DeviceMap& map) {
  MapProblems problems;
  DevicesOf(manifest, map, problems);
  return problems;
}

int64_t BytesOf(const WeightInfo& weight) {
  const Dtype* dtype = FindDtype(weight.dtype);
  return dtype ? static_cast<int64_t>(TensorBytes(*dtype, weight.shape, weight.name)) : 0;
}

void CheckFrozen(const Manifest& manifest, const DeviceMap& map, const std::string& path) {
  const Names names(manifest);
  std::set<std::string> trained, frozen;  // keys
  for (const ModuleInfo& module : manifest.modules)
    for (const WeightInfo& weight : module.held) {
      const auto* entry = EntryOfWeight(map, names, module, weight);
      if (weight.kind != WeightKind::kParameter || !entry || entry->second != "disk") continue;
      (weight.requires_grad ? trained : frozen).insert(entry->first);
    }
  std::vector<std::string> wrong;
  for (const std::string& key : trained)
    if (!frozen.count(key)) wrong.push_back(Quote(key));
  if (!wrong.empty())
    throw Error(path, Few(wrong) + (wrong.size() > 1 ? " are" : " is") + " on disk and trained",
                "what is trained stays in memory: freeze it (\"freeze\" in the job), or put it on "
                "cpu or a numbered device");
}

std::vector<std::vector<bool>> WeightsOfStages(const Manifest& manifest, const Conf& conf) {
  std::vector<std::vector<bool>> on_disk;
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    on_disk.emplace_back(manifest.modules[m].held.size(),
                         std::binary_search(conf.offloaded_stages.begin(),
                                            conf.offloaded_stages.end(), conf.module_to_stage[m]));
  return on_disk;
}

Residence ReadResidence(const Manifest& manifest, const DeviceMap& map, const std::string& path,
                        int ranks) {
  Residence result;
  Devices devices = DevicesOfWeights(manifest, map, path, result.warnings);
  std::map<int, int> rank_of;  // device -> rank
  for (const auto& [key, device] : map)
    if (IsNumber(device)) rank_of[std::stoi(device)];
  int count = 0;
  for (auto& [device, rank] : rank_of) rank = count++;
  const int needed = std::max(count, 1);
  if (ranks > 1 && ranks != needed)
    throw Error(path,
                "it has " + Counted(needed, "numbered device") + ", one per rank; " +
                    Counted(ranks, "rank") + " were started",
                needed > 1
                    ? "start " + std::to_string(needed) + ", or one rank for all of them"
                    : "start one rank, or give the map numbers for " + std::to_string(ranks) +
                          ": pipewright place --max-memory 0=SIZE,1=SIZE");
  const bool one = ranks == 1 || needed == 1;
  std::vector<int> ranks_of(manifest.modules.size(), -1);
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& module = manifest.modules[m];
    std::vector<std::string>& of = devices[m];
    // A weight that no key covers goes with its module, or to memory if the module is divided.
    bool all_disk = std::count(of.begin(), of.end(), "disk") > 0;
    for (const std::string& device : of)
      all_disk = all_disk && (device.empty() || device == "disk");
    std::vector<bool>& on_disk = result.on_disk.emplace_back();
    const WeightInfo* placed = nullptr;
    for (size_t w = 0; w < of.size(); ++w) {
      on_disk.push_back(of[w] == "disk" || (of[w].empty() && all_disk));
      if (of[w].empty() || !IsNumber(of[w])) continue;
      int rank = one ? 0 : rank_of[std::stoi(of[w])];
      if (placed && rank != ranks_of[m])
        throw Error(path,
                    module.name + " would compute on two devices (" + placed->name + " and " +
                        module.held[w].name + ")",
                    CureOfTwoDevices(module.held[w].name));
      ranks_of[m] = rank;
      placed = &module.held[w];
    }
  }
  int rank = 0;
  for (size_t m = ranks_of.size(); m-- > 0;)
    if (ranks_of[m] >= 0) rank = ranks_of[m];
  bool apart = true;  // the next module begins a stage
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const bool offloaded = std::count(result.on_disk[m].begin(), result.on_disk[m].end(), true) > 0;
    if (ranks_of[m] >= 0 && ranks_of[m] != rank) rank = ranks_of[m], apart = true;
    if (apart || offloaded) result.conf.stage_to_ranks.push_back({rank});
    const int stage = static_cast<int>(result.conf.stage_to_ranks.size()) - 1;
    result.conf.module_to_stage.push_back(stage);
    if (offloaded) result.conf.offloaded_stages.push_back(stage);
    apart = offloaded;
  }
  // A device that holds nothing would be a rank without a stage.
  std::set<int> used;
  for (const std::vector<int>& stage : result.conf.stage_to_ranks) used.insert(stage[0]);
  if (!one && static_cast<int>(used.size()) < needed)
    throw Error(path, "one of its devices has no module of the package", "leave that device out");
  return result;
}

}  // namespace pipewright
