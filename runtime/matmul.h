// Products of float32 matrices by oneDNN instead of the library that LibTorch has for them (MKL). On
// AMD's processors oneDNN takes 0.45 to 0.9 of MKL's time for large ones (docs/performance.md);
// results differ by rounding, and are the same bits each time.
#pragma once
#include <string>

#include "plan/job.h"

namespace pipewright {

// Of this process, from now on: aten::mm and aten::addmm of float32 on CPU, and whatever leads to
// them (linear layers, their gradients), as lists of operations too. What is small, or lies in
// memory in another way than linear layers have it, stays with LibTorch. Throws Error for oneDNN
// where LibTorch was built without it. `where` names the choice in it.
void UseMatMul(MatMul choice, const std::string& where);

}  // namespace pipewright
