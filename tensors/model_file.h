// A model's tensors into a file and back, by the rules of safetensors' torch API
// (safetensors.torch.save_model and load_model, 0.8).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tensors/offloaded_tensor.h"
#include "tensors/state_dict.h"

namespace pipewright {

struct SaveOptions {
  bool force_contiguous = false;  // else tensors that are not contiguous are refused
  std::map<std::string, std::string> metadata;
  // Of the names that share memory, one of `preferred` is kept before others, one of `discard` only
  // where there is no other.
  std::vector<std::string> preferred, discard;
};
// One name of each group that shares memory is written, the alphabetically first that covers its
// storage; the others become metadata, "dropped": "kept", where the caller has not set the key. A
// slice that shares with no other name is written as its own bytes. Throws Error: a group with no
// complete name, tensors that are not contiguous, sparse or on the meta device, types that
// safetensors lacks.
void SaveModel(const NamedTensors& tensors, const std::string& path,
               const SaveOptions& options = {});
// `on_disk`: what LoadByDeviceMap returned. Those values go from file to file.
void SaveModel(const torch::nn::Module& module, const std::string& path,
               const SaveOptions& options = {},
               const std::map<std::string, OffloadedTensor>& on_disk = {});

// Gives the tensors the values of a file. They keep their types, devices and ties; those on the
// meta device get memory. `path`: anything OpenCheckpoint takes. Reports, sorted, names that got no
// value, and names of the file that the model lacks, or that share memory with another one which is
// kept. `strict`: throws Error where there are any, before anything changes. Throws Error for
// another shape.
LoadReport LoadModel(const NamedTensors& tensors, const std::string& path, bool strict = true);
LoadReport LoadModel(torch::nn::Module& module, const std::string& path, bool strict = true);

// What a strict load refuses: as text, "" where there is nothing.
std::string ReportText(const LoadReport& report);

}  // namespace pipewright
