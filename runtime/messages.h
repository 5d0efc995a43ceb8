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

// One region a tensor; all are contiguous.
Bundle MakeBundle(Tensors tensors);
const Tensors& TensorsOf(const Bundle& bundle);

// For a value to be received: in memory that `memory` (Transport::Memory) gives, or in any.
using MemorySource = std::function<std::shared_ptr<void>(size_t bytes)>;
at::Tensor EmptyTensor(at::IntArrayRef sizes, at::ScalarType type, const MemorySource& memory);

// Contiguous, and as its memory says: neither conjugated nor negated on reading. Plain() makes it
// so.
bool IsPlain(const at::Tensor& tensor);
at::Tensor Plain(const at::Tensor& tensor);

// How a value looks on a message, and back: scalars travel as tensors of no dimension.
at::Tensor ToTensor(const c10::IValue& value);
c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value);

}  // namespace pipewright
