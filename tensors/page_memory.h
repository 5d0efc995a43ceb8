// Allocates tensors whose memory returns to the system as soon as they are freed. glibc keeps many
// large aligned blocks without reusing them: weights that come and go would add up to the size of
// all of them.
#pragma once
#include <ATen/core/Tensor.h>

namespace pipewright {

// Returns an uninitialized contiguous CPU tensor, aligned to 64 bytes or more. Small ones come from
// LibTorch's allocator. Throws c10::Error if there is no memory.
at::Tensor EmptyInPages(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace pipewright
