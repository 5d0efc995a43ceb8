// Saves a model's tensors to a file and loads them, by the rules of safetensors' torch API
// (safetensors.torch.save_model and load_model, 0.8).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tensors/offloaded_tensor.h"
#include "tensors/state_dict.h"

namespace pipewright {

struct SaveOptions {
  bool force_contiguous = false;  // otherwise non-contiguous tensors are rejected
  std::map<std::string, std::string> metadata;
  // Among names that share memory, one in `preferred` is kept first, one in `discard` only if there
  // is no other.
  std::vector<std::string> preferred, discard;
};
// Writes one name of each group that shares memory, the alphabetically first that covers its
// storage; the others become metadata, "dropped": "kept", unless the caller has set the key. A
// slice that shares with no other name is written as its own bytes. Throws Error for a group
// without a complete name, for tensors that are not contiguous, sparse or on the meta device, and
// for types that safetensors lacks.
void SaveModel(const NamedTensors& tensors, const std::string& path,
               const SaveOptions& options = {});
// `on_disk` is the result of LoadByDeviceMap. Those values are copied from file to file.
void SaveModel(const torch::nn::Module& module, const std::string& path,
               const SaveOptions& options = {},
               const std::map<std::string, OffloadedTensor>& on_disk = {});

// Gives the tensors the values of a file. They keep their types, devices and ties; meta tensors get
// memory. `path` may be anything that OpenCheckpoint accepts. Reports, sorted, names that got no
// value, and names of the file that the model lacks or that share memory with another one that is
// kept. With `strict`, throws Error if there are any, before it changes anything. Throws Error for
// another shape.
LoadReport LoadModel(const NamedTensors& tensors, const std::string& path, bool strict = true);
LoadReport LoadModel(torch::nn::Module& module, const std::string& path, bool strict = true);

// Returns the names that a strict load rejects, as text; "" if there are none.
std::string ReportText(const LoadReport& report);

}  // namespace pipewright
