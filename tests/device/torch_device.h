// The test device as LibTorch's accelerator "sim" (PrivateUse1). A program that is linked with this
// library, or preloads it, has devices sim:0, sim:1, … beside the CPU; nothing needs to be called.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <vector>

#include "device.h"

namespace c10 {
class OperatorHandle;
}

namespace sim {

// Returns the stream on which this thread launches.
Queue& CurrentQueue(c10::DeviceIndex device);
Queue& QueueOf(const c10::Stream& stream);

bool IsOfDevice(const at::Tensor& tensor);
at::Tensor EmptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                        c10::Device device);
// Gives the tensor these sizes, without gaps, and more memory if necessary.
const at::Tensor& Resize(const at::Tensor& tensor, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> = std::nullopt);

// Returns the number of bytes from a tensor's first element to its last.
size_t Extent(const at::Tensor& tensor);
Access AccessOf(const at::Tensor& tensor, bool writes);
// Returns the same bytes as a CPU tensor; for tasks only.
at::Tensor ShadowTensor(const at::Tensor& tensor);

// Runs any operator with the CPU's kernel, in the order of the current stream.
void RunOnStream(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);
// Registers RunOnStream for each operator for which the CPU has a kernel of its own.
void RegisterOperators();

}  // namespace sim
