// Converts between the messages of an edge and tensors.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <vector>

#include "formats/manifest.h"
#include "runtime/exec/transport.h"

namespace pipewright {

using Tensors = std::vector<at::Tensor>;

Region RegionOf(const at::Tensor& tensor);

// Returns a bundle with one region per tensor. Tensors must be dense in memory: without gaps, with
// strides in any order.
Bundle MakeBundle(Tensors tensors);
const Tensors& TensorsOf(const Bundle& bundle);

// Makes the message of an edge: a bundle with one extra region, which says for each tensor whether
// it is present (a gradient may be absent; memory of its size is sent anyway) and how it lies in
// memory. Tensors with gaps or repeated elements are sent as dense copies. To receive a message,
// pass contiguous tensors of the right sizes.
Bundle MakeMessage(Tensors tensors, const std::vector<bool>& there = {});
int64_t LayoutBytes(size_t dimensions);  // of one tensor's layout in that region
// Returns the tensors, on `device`, with the sender's strides and address alignment, since kernels
// add in another order if these differ; absent ones are undefined. `on_host`: those that stay in
// host memory, where they must have arrived.
Tensors ReadMessage(const Bundle& message, at::Device device = at::kCPU,
                    const std::vector<bool>& on_host = {});

// Returns the message in host memory: itself, if all of it is there, or a copy.
Bundle MessageOnHost(Bundle message);

// Allocates the memory for a received value: from `memory` (Transport::Memory), which must be the
// device's, or any.
using MemorySource = std::function<std::shared_ptr<void>(size_t bytes)>;
at::Tensor EmptyTensor(at::IntArrayRef sizes, at::ScalarType type, const MemorySource& memory,
                       at::Device device = at::kCPU);

// Returns true if two elements of the tensor lie in the same place.
bool HasRepeatedElements(const at::Tensor& tensor);
// Returns a copy that lies in memory like the tensor: with its strides and the alignment of its
// address. What lies between its elements is undefined.
at::Tensor CopyAsItLies(const at::Tensor& tensor);

// Convert a value for transfer and back. Tensors are detached, and share the memory of `value`
// unless a conjugation or negation must be resolved. Scalars travel as tensors without dimensions.
at::Tensor ToTensor(const c10::IValue& value);
c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value);

}  // namespace pipewright
