// Multiplies float32 matrices with oneDNN instead of LibTorch's default (MKL on x86), which is
// slower for large matrices on AMD processors (docs/internals/performance.md). Results differ by
// rounding, and have the same bits each time.
#pragma once
#include <string>

#include "formats/job.h"

namespace pipewright {

// Applies to this process from now on: to aten::mm and aten::addmm of float32 on CPU and to
// everything that uses them (linear layers, gradients of their inputs), also in recorded lists.
// Products that are small, narrow or would need a copy stay with LibTorch; kernels that an operator
// library has registered are no longer used. Throws Error if LibTorch was built without oneDNN; its
// message names `where`.
void UseMatMul(MatMul choice, const std::string& where);

}  // namespace pipewright
