// Handles the memory of tensors that may lie on a device, where the host cannot read or write. Only
// these functions allocate it, fill it from files and copy it to the host. On the CPU they copy
// nothing.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

#include "formats/weights/safetensors.h"

namespace pipewright {

at::Tensor EmptyOn(at::Device device, at::IntArrayRef sizes, at::ScalarType type);
// Returns host memory that devices read and write asynchronously, at a multiple of `alignment`.
at::Tensor PinnedBytes(int64_t bytes, uint64_t alignment = 1);

// Fills a contiguous tensor with bytes that arrive in pieces, in order. Does not change its
// version.
class Filler {
 public:
  explicit Filler(const at::Tensor& tensor);
  void Add(std::string_view piece);

 private:
  char* to_ = nullptr;  // on the CPU
  at::Tensor bytes_;    // elsewhere
  int64_t filled_ = 0;
};

// Reads a tensor of a file into `to`, which has the same number of bytes; stages it in host memory
// if `to` is on a device.
void ReadInto(const SafetensorsFile& file, const TensorInfo& from, const at::Tensor& to);

// Returns the tensor itself on the CPU; otherwise waits for the device and returns a copy with its
// strides.
at::Tensor OnHost(const at::Tensor& tensor);
// Does the same through pinned memory, which is faster, and which LibTorch keeps for the next copy.
at::Tensor OnPinnedHost(const at::Tensor& tensor);
// Returns a copy even on the CPU, so that the tensor may change.
at::Tensor CopyOnHost(const at::Tensor& tensor);

// Returns the tensor itself if it is on the device already, else a copy there with its strides.
at::Tensor OnDevice(const at::Tensor& tensor, at::Device device);

// Does the same, but a copy from the host begins in the order of the current stream, and the host
// does not wait for it.
at::Tensor OnDeviceLater(const at::Tensor& tensor, at::Device device);

// Returns the bytes of a contiguous CPU tensor; valid as long as it lives.
std::string_view HostBytes(const at::Tensor& tensor);

// Returns an identity of a tensor's memory: weights that share one tensor have the same.
const void* MemoryOf(const at::Tensor& tensor);

}  // namespace pipewright
