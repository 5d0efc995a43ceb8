// accelerate's device map: module or tensor name -> device that holds it.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "plan/placement/tree/module_tree.h"

namespace pipewright {

// A name covers itself and everything under it; "" covers the model. In the order of placement.
using DeviceMap = std::vector<std::pair<std::string, std::string>>;

// Returns JSON such as {"fc": 0, "head": "cpu"}; a device of digits is a number.
Json DeviceMapJson(const DeviceMap& map);
DeviceMap ReadDeviceMap(const Json& json, const std::string& path);

// Replaces several entries under a common prefix by the prefix if they share a device, from the
// root downward.
DeviceMap CleanDeviceMap(DeviceMap map);

// Returns true if a key of a map is the name or a module that contains it.
bool Covers(const std::string& key, const std::string& name);

// Returns the device of the longest key that covers the name; "" if none does.
std::string DeviceOf(const DeviceMap& map, const std::string& name);

// Returns the device of every tensor of the model, by id; "" if no key covers it.
std::vector<std::string> TensorDevices(const ModuleTree& tree, const DeviceMap& map);

// The errors in a map for a model. `uncovered`: tensors that no key covers. `overlapping`: keys
// within another key ("fc and fc.bias"). `unknown`: keys that name nothing, with a suggestion.
// `split_ties`: tied parameters on several devices. The first two make a map unusable.
struct MapProblems {
  std::vector<std::string> uncovered, overlapping, unknown, split_ties;
  bool Usable() const { return uncovered.empty() && overlapping.empty(); }
};
MapProblems CheckDeviceMap(const ModuleTree& tree, const DeviceMap& map);

}  // namespace pipewright
