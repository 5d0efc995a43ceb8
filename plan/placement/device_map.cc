#include "plan/placement/device_map.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

static bool Digits(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

Json DeviceMapJson(const DeviceMap& map) {
  Json json = Json::object();
  for (const auto& [name, device] : map)
    if (Digits(device))
      json[name] = std::stol(device);
    else
      json[name] = device;
  return json;
}

DeviceMap ReadDeviceMap(const Json& json, const std::string& path) {
  if (!json.is_object())
    throw Error(path, "expected a JSON object that maps module names to devices");
  DeviceMap map;
  for (const auto& [name, device] : json.items()) {
    if (name == "$schema") continue;
    std::string text = device.is_number_unsigned() ? device.dump()
                       : device.is_string()        ? device.get<std::string>()
                                                   : "";
    if (!Digits(text) && text != "cpu" && text != "disk")
      throw Error(path, Quote(name) + ": unknown device " + device.dump(),
                  "devices are 0, 1, ..., \"cpu\" and \"disk\"");
    map.push_back({name, Digits(text) ? std::to_string(std::stol(text)) : text});
  }
  return map;
}

// Returns the prefixes of a dotted name, shortest first: "", "a", "a.b".
static std::vector<std::string> Prefixes(const std::string& name) {
  std::vector<std::string> prefixes = {""};
  if (name.empty()) return prefixes;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    prefixes.push_back(name.substr(0, dot));
  prefixes.push_back(name);
  return prefixes;
}

DeviceMap CleanDeviceMap(DeviceMap map) {
  // Counts the entries under every proper prefix, and keeps their device while they agree.
  struct Under {
    int count = 0;
    const std::string* device = nullptr;
    bool agree = true;
  };
  std::map<std::string, Under> under;
  for (const auto& [name, device] : map) {
    if (name.empty()) continue;
    for (const std::string& prefix : Prefixes(name)) {
      if (prefix == name) break;
      Under& u = under[prefix];
      u.agree = u.agree && (!u.device || *u.device == device);
      u.device = &device;
      ++u.count;
    }
  }
  DeviceMap clean;
  std::set<std::string> done;
  for (const auto& [name, device] : map) {
    std::string key = name;
    for (const std::string& prefix : Prefixes(name)) {
      auto found = under.find(prefix);
      if (prefix == name || found == under.end()) break;
      if (!found->second.agree || found->second.count < 2) continue;
      key = prefix;
      break;
    }
    if (done.insert(key).second) clean.push_back({key, device});
  }
  return clean;
}

bool Covers(const std::string& key, const std::string& name) {
  return key.empty() || name == key ||
         (name.size() > key.size() && name.compare(0, key.size(), key) == 0 &&
          name[key.size()] == '.');
}

std::string DeviceOf(const DeviceMap& map, const std::string& name) {
  std::string device;
  size_t longest = 0;
  for (const auto& [key, value] : map)
    if (Covers(key, name) && (device.empty() || key.size() >= longest))
      device = value, longest = key.size();
  return device;
}

std::vector<std::string> TensorDevices(const ModuleTree& tree, const DeviceMap& map) {
  std::map<std::string, std::string> devices(map.begin(), map.end());
  std::vector<std::string> of;
  for (const TreeTensor& tensor : tree.tensors) {
    of.emplace_back();
    for (const std::string& prefix : Prefixes(tensor.name))
      if (auto found = devices.find(prefix); found != devices.end()) of.back() = found->second;
  }
  return of;
}

MapProblems CheckDeviceMap(const ModuleTree& tree, const DeviceMap& map) {
  MapProblems problems;
  std::map<std::string, std::string> devices(map.begin(), map.end());
  std::set<std::string> names;
  for (const TreeModule& module : tree.modules) names.insert(module.name);
  for (const TreeTensor& tensor : tree.tensors) names.insert(tensor.name);
  std::vector<std::string> known(names.begin(), names.end());
  for (const auto& [key, device] : map) {
    if (!names.count(key)) problems.unknown.push_back(Quote(key) + Suggest(key, known));
    for (const std::string& prefix : Prefixes(key))
      if (prefix != key && devices.count(prefix))
        problems.overlapping.push_back(Quote(prefix) + " and " + Quote(key));
  }
  std::vector<std::string> of = TensorDevices(tree, map);
  std::map<int, std::set<std::string>> of_tensor;  // devices of a tied group
  for (size_t i = 0; i < of.size(); ++i)
    if (of[i].empty())
      problems.uncovered.push_back(tree.tensors[i].name);
    else
      of_tensor[tree.tensors[i].first].insert(of[i]);
  for (const auto& [first, places] : of_tensor)
    if (places.size() > 1 && StaysTogether(tree.tensors[static_cast<size_t>(first)]))
      problems.split_ties.push_back(tree.tensors[static_cast<size_t>(first)].name +
                                    " and the names tied to it lie on " +
                                    Join({places.begin(), places.end()}, ", "));
  return problems;
}

}  // namespace pipewright
