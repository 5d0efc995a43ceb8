// Handles the code in TorchScript archives: limits on its nesting, and the lines of the model that
// it came from.
#pragma once
#include <torch/csrc/jit/serialization/source_range_serialization.h>

#include <memory>
#include <string>

namespace pipewright {

// Throws Error if brackets or blocks of `code` are nested so deeply that LibTorch's recursive
// parser could overflow the stack.
void CheckNesting(const std::string& code, const std::string& where);

// Reads the table beside a code record (`.debug_pkl`, PyTorch
// torch/csrc/jit/serialization/source_range_serialization.cpp, both formats) on first use. A
// damaged table yields no lines.
std::shared_ptr<torch::jit::SourceRangeUnpickler> MakeModelLines(std::string pickle);

}  // namespace pipewright
