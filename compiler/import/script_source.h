// The code in TorchScript archives: bounds, and the lines of the model that it was made from.
#pragma once
#include <torch/csrc/jit/serialization/source_range_serialization.h>

#include <memory>
#include <string>

namespace pipewright {

// Throws Error when brackets or blocks of `code` nest so deep that LibTorch's recursive parser
// could run out of stack.
void CheckCode(const std::string& code, const std::string& where);

// Reads the table beside a code record (`.debug_pkl`, PyTorch
// torch/csrc/jit/serialization/source_range_serialization.cpp, both formats) when first asked.
// A damaged table gives no lines.
std::shared_ptr<torch::jit::SourceRangeUnpickler> MakeModelLines(std::string pickle);

}  // namespace pipewright
