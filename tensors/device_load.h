// Loads models of torch::nn with weights on several devices or on disk, like accelerate's
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
  bool strict = true;                   // false: missing or unexpected names are only reported
  std::optional<at::ScalarType> dtype;  // for floating-point values; others keep theirs
  std::string folder;                   // for files of values on disk that no checkpoint holds
};
struct DeviceLoad {
  std::map<std::string, OffloadedTensor> on_disk;  // by every name; tied names have one entry
  LoadReport report;                               // as from LoadModel
};

// Gives a module the values of a state dict or checkpoint, each on the device from a map (module or
// tensor name -> device, plan/placement/device_map.h). Values on disk become meta tensors in the
// module and are returned: directly in the checkpoint if it holds them, or in a file of their own
// if the value was in memory. Peak memory is what stays in memory plus one tensor. Names of one
// tensor stay tied, and tensors that share memory continue to share it; their device is that of the
// first name in the model. Devices 0, 1, ... are the machine's accelerators, or memory if it has
// none. Throws Error before it changes anything: for names without a device, unknown devices, keys
// within keys, other shapes; if strict, for missing and unexpected names.
DeviceLoad LoadByDeviceMap(torch::nn::Module& module, const std::string& path, const DeviceMap& map,
                           const DeviceLoadOptions& options = {});
DeviceLoad LoadByDeviceMap(torch::nn::Module& module, const AnyTensors& values,
                           const DeviceMap& map, const DeviceLoadOptions& options = {});

// While it exists, weights that are on disk are loaded into the module: those under `prefix` (a
// module or a tensor; "": all). Changes to them are lost; the files stay unchanged.
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

// Lets several models take turns on one device: using one moves the previous one away. For
// inference: gradients stay where they are.
class ModelsInTurn {
 public:
  // With `files`, models that are not on the device are stored in files, in a folder of this
  // process in `folder`, and take no memory; otherwise they are in RAM, which needs a device other
  // than the CPU.
  explicit ModelsInTurn(at::Device device, bool files = false, const std::string& folder = "");

  // Moves a model away and returns its number, from 0. A model may have no tensors. `on_disk` lists
  // values that are in files already (LoadByDeviceMap); they are read from there.
  size_t Add(const NamedTensors& tensors,
             const std::map<std::string, OffloadedTensor>& on_disk = {});
  size_t Add(torch::nn::Module& module,
             const std::map<std::string, OffloadedTensor>& on_disk = {}) {
    return Add(StateDictOf(module), on_disk);
  }

  // Brings a model to the device until another one is used. Changes to its tensors in the meantime
  // are kept.
  void Use(size_t model);
  void Evict();  // moves the current model away
  // Moves a model to a device for good. A model in files that is not removed ends without values.
  void Remove(size_t model, at::Device device = at::kCPU);

 private:
  struct Part {
    OwnedTensor tensor;
    std::optional<OffloadedTensor> file;
    uint32_t version = 0;  // version when it was loaded
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
