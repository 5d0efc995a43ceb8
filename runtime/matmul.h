// Products of float32 matrices by oneDNN instead of what LibTorch has for them (MKL on x86), which
// on AMD's processors is the slower one for large ones (docs/internals/performance.md). Results
// differ by rounding, and are the same bits each time.
#pragma once
#include <string>

#include "plan/job.h"

namespace pipewright {

// Of this process, from now on: aten::mm and aten::addmm of float32 on CPU, and what leads to them
// (linear layers, gradients of their inputs), as lists of operations too. What is small or narrow,
// or would have to be copied, stays with LibTorch; kernels that an operator library has put in
// their place are no longer used. Throws Error where LibTorch was built without oneDNN; `where`
// names the choice in it.
void UseMatMul(MatMul choice, const std::string& where);

}  // namespace pipewright
