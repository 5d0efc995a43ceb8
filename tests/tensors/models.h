// Defines models for these tests.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>


namespace pipewright {

using Names = std::vector<std::string>;

struct TwoLinear : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr};
  explicit TwoLinear(bool shared) {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = shared ? register_module("b", a) : register_module("b", torch::nn::Linear(4, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(a->forward(x)); }
};

}  // namespace pipewright
