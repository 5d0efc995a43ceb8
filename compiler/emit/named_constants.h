// Constants that code shows by their names, where the graph has numbers: torch.float32 for 6.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace pipewright {

// Gives the constants that have names numbers that the text below tells apart, and leaves out the
// ends of slices that have none (9223372036854775807).
void MarkConstants(torch::jit::Graph& graph);

// Printed code with the names of those constants, and with their own numbers.
std::string NameConstants(const std::string& text);
std::string NumberConstants(const std::string& text);

// Returns the first operation of `a` where `b` has another, or the same on other values; nullptr if
// there is none. Constants may stand elsewhere.
const torch::jit::Node* FirstDifference(const torch::jit::Graph& a, const torch::jit::Graph& b);

}  // namespace pipewright
