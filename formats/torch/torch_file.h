// Reads state dicts as torch.save writes them: pytorch_model.bin, .pt, .pth.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "formats/torch/stored_tensor.h"

namespace pipewright {

// A zip archive, or the older format that begins with a pickle.
bool IsTorchFile(std::string_view file);

// The tensors of a state dict, in its order, with file index 0. Reads descriptions only; no code is
// executed and payloads are not touched. Throws Error naming `path`: anything that is not a dict of
// names to strided tensors, dtypes that safetensors cannot hold, ranges beyond a storage.
std::vector<StoredTensor> ReadTorchFile(std::string_view file, const std::string& path);

// Returns the class ("__main__.Model") where the file holds an object of Python, as
// torch.save(model) writes it; "" if it does not, or is damaged.
std::string PickledClass(std::string_view file, const std::string& path);

// The element type of a storage's class in a pickle ("torch FloatStorage": "F32"); nullptr:
// unknown.
const char* DtypeOfStorage(const std::string& global);

}  // namespace pipewright
