// Determines which PyTorch operations draw random numbers.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace pipewright {

enum class Draws {
  kNothing,        // e.g. dropout in evaluation mode
  kDropout,        // dropout, feature_dropout, ...: in place if the name ends in _
  kNativeDropout,
  kAttention,      // scaled_dot_product_attention with dropout
  kRnn,            // an RNN with dropout between its layers
  kGenerator,      // from a generator, if given one
  kHopeless,       // not reproducible
};
Draws DrawsOf(const torch::jit::Node* node);

// Returns advice how to write an operation that draws, so that every rank draws the same numbers,
// or "" if the operation has a generator or draws nothing.
std::string RepeatableForm(const torch::jit::Node* node);

}  // namespace pipewright
