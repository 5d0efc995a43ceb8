// Messages of an edge as tensors, and back.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "plan/manifest.h"
#include "runtime/exec/transport.h"

namespace pipewright {

using Tensors = std::vector<at::Tensor>;

// One region a tensor; all are contiguous.
Bundle MakeBundle(Tensors tensors);
const Tensors& TensorsOf(const Bundle& bundle);

// Contiguous, and as its memory says: neither conjugated nor negated on reading. Plain() makes it
// so.
bool IsPlain(const at::Tensor& tensor);
at::Tensor Plain(const at::Tensor& tensor);

// How a value looks on a message, and back: scalars travel as tensors of no dimension.
at::Tensor ToTensor(const c10::IValue& value);
c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value);

}  // namespace pipewright
