// Runs graphs of tests with LibTorch's interpreter.
#pragma once
#include <torch/csrc/jit/runtime/interpreter.h>

#include <memory>
#include <vector>

namespace pipewright {

inline std::vector<c10::IValue> RunGraph(const std::shared_ptr<torch::jit::Graph>& graph,
                                         std::vector<c10::IValue> inputs) {
  torch::jit::Code code(graph, "test");
  torch::jit::InterpreterState(code).run(inputs);
  return inputs;
}

}  // namespace pipewright
