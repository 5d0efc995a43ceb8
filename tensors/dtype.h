// Maps element types to names: torch's in manifests, safetensors' in weight files.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace pipewright {

std::string DtypeName(at::ScalarType type);         // "float32"
at::ScalarType DtypeOf(const std::string& name);    // throws Error for unknown names
std::string SafetensorsDtype(at::ScalarType type);  // "F32"; throws Error if there is none
at::ScalarType DtypeOfSafetensors(const std::string& name);

}  // namespace pipewright
