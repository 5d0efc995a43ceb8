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

// One region per tensor; each tensor must be dense in memory: without gaps, in any order of strides.
Bundle MakeBundle(Tensors tensors);
const Tensors& TensorsOf(const Bundle& bundle);

// Makes the message of an edge: a bundle with one extra region, which says for each tensor whether
// it is present (a gradient may be absent; memory of its size is sent anyway) and its memory
// layout. To receive a message, pass contiguous tensors of the right sizes.
Bundle MakeMessage(Tensors tensors, const std::vector<bool>& there = {});
int64_t LayoutBytes(size_t dimensions);  // of one tensor in that region
// Returns the tensors with the sender's layout; absent ones are undefined.
Tensors ReadMessage(const Bundle& message);

// Allocates the memory for a received value: from `memory` (Transport::Memory), or any.
using MemorySource = std::function<std::shared_ptr<void>(size_t bytes)>;
at::Tensor EmptyTensor(at::IntArrayRef sizes, at::ScalarType type, const MemorySource& memory);

// Returns the same numbers in memory that can be sent: with the strides of one process, but without
// gaps (of a slice), conjugation or negation. Repeated elements (stride 0) stay repeated, stored
// once at the beginning of the memory.
at::Tensor Packed(const at::Tensor& tensor);
// Sets other strides within the tensor's memory.
void Restride(const at::Tensor& tensor, at::IntArrayRef strides);

// Convert a value for transfer and back: scalars travel as tensors without dimensions.
at::Tensor ToTensor(const c10::IValue& value);
c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value);

}  // namespace pipewright
