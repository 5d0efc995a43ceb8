// Models of torch::nn whose weights lie on several devices or on disk, after accelerate's
// load_checkpoint_and_dispatch and cpu_offload_with_hook.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/placement/device_map.h"
#include "tensors/offloaded_tensor.h"
#include "tensors/state_dict.h"

namespace pipewright {

struct DeviceLoadOptions {
  bool strict = true;                   // else what is missing or unexpected is reported
  std::optional<at::ScalarType> dtype;  // of floating-point values; others keep theirs
  std::string folder;                   // for values on disk that no checkpoint holds
};
struct DeviceLoad {
  std::map<std::string, OffloadedTensor> on_disk;  // by every name; tied names have one
  LoadReport report;                               // as LoadModel's
};

// Gives a module the values of a state dict or checkpoint, each on the device that a map (module or
// tensor name -> device, plan/placement/device_map.h) says. What lies on disk becomes meta in the
// module and is returned: straight in the checkpoint where that holds it, in a file of its own
// where the value was in memory. Never holds more than what stays in memory and one
// tensor. Names of one tensor stay one, tensors that share memory go on sharing it; their device is
// that of the first name in the model. Devices 0, 1, ... are the machine's accelerators, memory
// where it has none. Throws Error, before anything changes: names without a device, unknown
// devices, keys within keys, other shapes; if strict, missing and unexpected names.
DeviceLoad LoadByDeviceMap(torch::nn::Module& module, const std::string& path, const DeviceMap& map,
                           const DeviceLoadOptions& options = {});
DeviceLoad LoadByDeviceMap(torch::nn::Module& module, const AnyTensors& values,
                           const DeviceMap& map, const DeviceLoadOptions& options = {});

// While one lives, weights that are on disk are in the module: those under `prefix` (a module or a
// tensor; "": all). Changes to them are lost, the files stay as they are.
class Resident {
 public:
  Resident(torch::nn::Module& module, const std::map<std::string, OffloadedTensor>& on_disk,
           const std::string& prefix = "");
  ~Resident();
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

 private:
  std::vector<OwnedTensor> loaded_;
};

// Several models that take turns on one device: using one sends the one before away. For inference:
// gradients stay where they are.
class ModelsInTurn {
 public:
  // `files`: models that are not on the device lie in files, in a folder of this process in
  // `folder`, and take no memory; else in RAM, which needs a device that is not the CPU.
  explicit ModelsInTurn(at::Device device, bool files = false, const std::string& folder = "");

  // Sends a model away. Returns its number, from 0. A model without tensors is one, too.
  // `on_disk`: values that lie in files already (LoadByDeviceMap); they are read from there.
  size_t Add(const NamedTensors& tensors,
             const std::map<std::string, OffloadedTensor>& on_disk = {});
  size_t Add(torch::nn::Module& module,
             const std::map<std::string, OffloadedTensor>& on_disk = {}) {
    return Add(StateDictOf(module), on_disk);
  }

  // Brings a model to the device, where it stays until another one is used. What was written to
  // tensors meanwhile goes with them.
  void Use(size_t model);
  void Evict();  // the one that is there
  // Brings a model to a device for good. One that lies in files and is not removed ends without
  // values.
  void Remove(size_t model, at::Device device = at::kCPU);

 private:
  struct Part {
    OwnedTensor tensor;
    std::optional<OffloadedTensor> file;
    uint32_t version = 0;  // when it came
  };
  void SendAway(Part& part);
  void Bring(size_t model, at::Device device);
  void Check(size_t model) const;

  at::Device device_;
  bool files_;
  std::string folder_;
  std::vector<std::vector<Part>> models_;
  size_t there_ = static_cast<size_t>(-1);
};

}  // namespace pipewright
