#include "plan/placement/package.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "plan/placement/residence.h"
#include "plan/placement/tensor_ids.h"

namespace pipewright {

ModuleTree TreeOfPackage(const Manifest& manifest) {
  ModuleTree tree;
  tree.modules.resize(1 + manifest.modules.size());
  tree.modules[0].class_name = "Package";
  // A rank shares tensors in inference: parameters, buffers and constants that several modules use.
  const std::vector<std::vector<int>> tensors = TensorIds(manifest, /*training=*/false);
  std::map<int, int> first;  // id in `tensors` -> id in the tree
  std::vector<std::pair<int, int>> ties;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    TreeModule& module = tree.modules[m + 1];
    module.name = manifest.modules[m].name;
    module.class_name = "Module";
    module.parent = 0;
    tree.modules[0].children.push_back(static_cast<int>(m) + 1);
    for (bool buffers : {false, true})
      for (size_t w = 0; w < manifest.modules[m].held.size(); ++w) {
        const WeightInfo& weight = manifest.modules[m].held[w];
        if ((weight.kind != WeightKind::kParameter) != buffers) continue;
        int id = static_cast<int>(tree.tensors.size());
        TreeTensor tensor;
        tensor.name = module.name + "." + weight.name;
        tensor.dtype = weight.dtype;
        tensor.shape = weight.shape;
        tensor.buffer = buffers;
        tensor.module = static_cast<int>(m) + 1;
        (buffers ? module.buffers : module.parameters).push_back(id);
        const auto [found, is_new] = first.emplace(tensors[m][w], id);
        if (!is_new) ties.push_back({found->second, id});
        tree.tensors.push_back(tensor);
      }
  }
  FinishTree(tree, ties);
  return tree;
}

// Returns the device of a module whose weights are on `of`; "" if the map does not have it.
static std::string DeviceOfModule(const ModuleInfo& module, const std::vector<std::string>& of,
                                  const DeviceMap& map, const std::string& path) {
  std::map<std::string, std::string> devices;  // device -> a name that is on it
  for (size_t w = 0; w < of.size(); ++w) devices.insert({of[w], module.held[w].name});
  devices.erase("");
  if (devices.empty()) {
    devices.insert({DeviceOf(map, module.name), module.name});
    for (const std::string& name : module.covers) devices.insert({DeviceOf(map, name), name});
    devices.erase("");
  }
  if (devices.empty()) return "";
  if (devices.size() > 1) {
    auto [one, name] = *devices.begin();
    auto [two, other] = *devices.rbegin();
    throw Error(
        path,
        module.name + " would lie on " + one + " (" + name + ") and on " + two + " (" + other + ")",
        "cut the package where the map changes: pipewright compile --split modules:" + other);
  }
  return devices.begin()->first;
}

// Returns the rank of each device: in the order of their numbers. The CPU is the last, or the first
// if the first module is on it.
static std::map<std::string, int> RanksOfDevices(const std::vector<std::string>& devices) {
  std::vector<std::string> order;
  for (const std::string& device : std::set<std::string>(devices.begin(), devices.end()))
    if (!device.empty()) order.push_back(device);
  const int cpu = devices.front() == "cpu" ? -1 : std::numeric_limits<int>::max();
  auto number = [&](const std::string& device) {
    return device == "cpu" ? cpu : std::stoi(device);
  };
  std::sort(order.begin(), order.end(),
            [&](const std::string& a, const std::string& b) { return number(a) < number(b); });
  std::map<std::string, int> rank_of = {{"", 0}};  // all modules are on disk
  for (const std::string& device : order) rank_of[device] = static_cast<int>(rank_of.size()) - 1;
  return rank_of;
}

Conf ConfOfDeviceMap(const Manifest& manifest, const DeviceMap& map, const std::string& path,
                     std::vector<std::string>& warnings) {
  Conf conf;
  const std::vector<std::vector<std::string>> of_weights =
      DevicesOfWeights(manifest, map, path, warnings);
  std::vector<std::string> devices;
  std::vector<bool> on_disk;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    devices.push_back(DeviceOfModule(manifest.modules[m], of_weights[m], map, path));
    on_disk.push_back(devices.back() == "disk");
    if (on_disk.back()) devices.back().clear();
  }
  for (size_t m = 1; m < devices.size(); ++m)
    if (devices[m].empty()) devices[m] = devices[m - 1];
  for (size_t m = devices.size(); m-- > 1;)
    if (devices[m - 1].empty()) devices[m - 1] = devices[m];
  const std::map<std::string, int> rank_of = RanksOfDevices(devices);
  for (size_t m = 0; m < devices.size(); ++m) {
    if (m == 0 || devices[m] != devices[m - 1] || on_disk[m] || on_disk[m - 1])
      conf.stage_to_ranks.push_back({rank_of.at(devices[m])});
    const int stage = static_cast<int>(conf.stage_to_ranks.size()) - 1;
    conf.module_to_stage.push_back(stage);
    if (on_disk[m]) conf.offloaded_stages.push_back(stage);
  }
  return conf;
}

}  // namespace pipewright
