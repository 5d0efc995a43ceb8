// Names of element types: torch's words in manifests, safetensors' words in weight files.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace pipewright {

std::string DtypeName(at::ScalarType type);         // "float32"
at::ScalarType DtypeOf(const std::string& name);    // throws Error for other words
std::string SafetensorsDtype(at::ScalarType type);  // "F32"; throws Error where it has none
at::ScalarType DtypeOfSafetensors(const std::string& name);

}  // namespace pipewright
