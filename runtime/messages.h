// Messages of an edge as tensors, and back.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <vector>

#include "plan/manifest.h"
#include "runtime/exec/transport.h"

namespace pipewright {

using Tensors = std::vector<at::Tensor>;

// One region a tensor; each lies in memory without gaps.
Bundle MakeBundle(Tensors tensors);
const Tensors& TensorsOf(const Bundle& bundle);

// What travels along an edge: a bundle with one region more, which says of each tensor whether it
// is there (a gradient need not be; some memory of its size is sent) and how it lies in memory. To
// receive one, the tensors are of the right sizes, contiguous.
Bundle MakeMessage(Tensors tensors, const std::vector<bool>& there = {});
int64_t LayoutBytes(size_t dimensions);  // of one tensor in that region
// Undefined where there is none. They lie as the sender's did.
Tensors ReadMessage(const Bundle& message);

// For a value to be received: in memory that `memory` (Transport::Memory) gives, or in any.
using MemorySource = std::function<std::shared_ptr<void>(size_t bytes)>;
at::Tensor EmptyTensor(at::IntArrayRef sizes, at::ScalarType type, const MemorySource& memory);

// The same numbers as memory that can be sent: the strides of one process, but for gaps (of a
// slice), which are left out. Neither conjugated nor negated on reading. What repeats its elements
// (stride 0) still does, at the beginning of memory for all of them.
at::Tensor Packed(const at::Tensor& tensor);
// Gives a tensor other strides within its memory.
void Restride(const at::Tensor& tensor, at::IntArrayRef strides);

// How a value is handed on, and back: scalars travel as tensors of no dimension.
at::Tensor ToTensor(const c10::IValue& value);
c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value);

}  // namespace pipewright
