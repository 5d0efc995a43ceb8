// Reads state dicts as torch.save writes them: pytorch_model.bin, .pt, .pth.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "formats/torch/stored_tensor.h"

namespace pipewright {

// Returns true for a zip archive and for the older format, which begins with a pickle.
bool IsTorchFile(std::string_view file);

// Returns the tensors of a state dict in its order, with file index 0. Reads descriptions only; no
// code is executed and payloads are not touched. Throws Error naming `path` for anything other than
// a dict of names to strided tensors, dtypes that safetensors cannot hold, and ranges beyond a
// storage.
std::vector<StoredTensor> ReadTorchFile(std::string_view file, const std::string& path);

// Returns the class ("__main__.Model") if the file holds a Python object, as torch.save(model)
// writes it; "" if it does not or is damaged.
std::string PickledClass(std::string_view file, const std::string& path);

// Returns the element type of a storage's class in a pickle ("F32" for "torch FloatStorage");
// nullptr if unknown.
const char* DtypeOfStorage(const std::string& global);

}  // namespace pipewright
