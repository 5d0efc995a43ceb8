// Which of PyTorch's operations draw random numbers.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace pipewright {

enum class Draws {
  kNothing,        // as dropout in evaluation does
  kDropout,        // dropout, feature_dropout, ...: in place where the name ends in _
  kNativeDropout,
  kAttention,      // scaled_dot_product_attention with dropout
  kGenerator,      // from a generator, where they are given one
  kHopeless,       // in a way that cannot be repeated
};
Draws DrawsOf(const torch::jit::Node* node);

// What to write for an operation of `DrawsOf`, so that every rank draws the same numbers; "" where
// it is given a generator, or draws nothing.
std::string RepeatableForm(const torch::jit::Node* node);

}  // namespace pipewright
