// Writes constants by name in printed code, where the graph has numbers: torch.float32 for 6.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace pipewright {

// Replaces constants that have names by numbers that the functions below recognize in printed code,
// and removes ends of slices that do not limit them (9223372036854775807). LibTorch prints floats
// such as 1e12 like integers (IValue::repr), so they become float(1000000000000).
void MarkConstants(torch::jit::Graph& graph);

// Return printed code with the marked constants as names, or as their original numbers.
std::string NameConstants(const std::string& text);
std::string NumberConstants(const std::string& text);

// Returns the first operation of `a` where `b` has a different one, or the same one with different
// operands; nullptr if there is none. Ignores the positions of constants.
const torch::jit::Node* FirstDifference(const torch::jit::Graph& a, const torch::jit::Graph& b);

}  // namespace pipewright
