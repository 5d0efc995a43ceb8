// Finds the weights of a module in its file and makes tensors of them.
#pragma once
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "formats/manifest.h"
#include "formats/weights/safetensors.h"

namespace pipewright {

// Returns the entry of a weight in a file; its type and shape must match the manifest. Throws
// Error.
const TensorInfo& CheckedWeight(const SafetensorsFile& file, const WeightInfo& weight);

// The error where the file of a module has other values of a weight than that of another module.
Error CopiesDiffer(const std::string& file, const std::string& weight);

// Returns a new tensor with the weight's values in `file`, or zeros if it is null.
at::Tensor MakeWeight(const WeightInfo& weight, const SafetensorsFile* file, at::Device device);

}  // namespace pipewright
