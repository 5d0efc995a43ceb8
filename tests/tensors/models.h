// Models for these tests.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

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

inline std::string MessageOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace pipewright
