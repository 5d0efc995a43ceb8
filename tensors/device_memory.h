// Memory of tensors that may lie on a device, where the host cannot read or write: it is allocated,
// filled from files and brought to the host by these functions alone. On the CPU they copy nothing.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

#include "formats/weights/safetensors.h"

namespace pipewright {

at::Tensor EmptyOn(at::Device device, at::IntArrayRef sizes, at::ScalarType type);

// Fills a tensor without gaps with bytes that come in pieces, in order. Its version stays.
class Filler {
 public:
  explicit Filler(const at::Tensor& tensor);
  void Add(std::string_view piece);

 private:
  char* to_ = nullptr;  // on the CPU
  at::Tensor bytes_;    // elsewhere
  int64_t filled_ = 0;
};

// Reads a tensor of a file into one of as many bytes; through a buffer where that is on a device.
void ReadInto(const SafetensorsFile& file, const TensorInfo& from, const at::Tensor& to);

// Returns the tensor itself on the CPU, else a copy with its strides, once the device has made it.
at::Tensor OnHost(const at::Tensor& tensor);
// Always copies, so that the tensor may change.
at::Tensor CopyOnHost(const at::Tensor& tensor);

// The bytes of a tensor of the CPU without gaps, as long as it lives.
std::string_view HostBytes(const at::Tensor& tensor);

// Names the memory of a tensor: weights that share one tensor have the same.
const void* MemoryOf(const at::Tensor& tensor);

}  // namespace pipewright
