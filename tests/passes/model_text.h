// Parses models for tests of passes from text.
#pragma once
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/testing/file_check.h>

#include <string>
#include <vector>

#include "ops/random_ops.h"
#include "passes/graph/model.h"

namespace pipewright {

// The graph's inputs must be, in this order, `weights`, %training : bool, %device : Device, and the
// model's own. The test adds submodules and shapes.
inline Model ParseModel(const std::string& text, const std::vector<Weight>& weights = {}) {
  CurrentRandomKey();
  Model model;
  model.file = "test.pt2";
  model.graph = std::make_shared<torch::jit::Graph>();
  std::unordered_map<std::string, torch::jit::Value*> names;
  torch::jit::parseIR(text, model.graph.get(), names);
  for (const auto& [name, value] : names) value->setDebugName(name);
  model.weights = weights;
  return model;
}

inline Weight Parameter(const std::string& name) {
  Weight weight;
  weight.names = {name};
  weight.requires_grad = true;
  return weight;
}

inline Weight Buffer(const std::string& name) {
  Weight weight;
  weight.names = {name};
  weight.kind = WeightKind::kBuffer;
  return weight;
}

inline torch::jit::Node* Find(const Model& model, const std::string& kind, int nth = 0) {
  for (torch::jit::Node* node : model.graph->nodes())
    if (node->kind().toQualString() == kind && nth-- == 0) return node;
  return nullptr;
}

inline torch::jit::testing::FileCheck Expect() { return torch::jit::testing::FileCheck(); }

}  // namespace pipewright
