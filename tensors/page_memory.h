// Tensors whose memory goes back to the system as soon as they are freed. Of large blocks aligned
// as tensors are, glibc keeps many and does not find them again: weights that come and go would add
// up to as much as all of them.
#pragma once
#include <ATen/core/Tensor.h>

namespace pipewright {

// On CPU, contiguous, not initialised; aligned to 64 bytes or more. Small ones come from LibTorch's
// allocator. Throws c10::Error where there is no memory.
at::Tensor EmptyInPages(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace pipewright
