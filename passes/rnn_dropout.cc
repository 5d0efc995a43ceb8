#include "passes/rnn_dropout.h"

#include <torch/csrc/jit/ir/constants.h>

#include <set>

#include "base/error.h"
#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

void Split(Model& model, Node* node) {
  torch::jit::Graph& graph = *model.graph;
  torch::jit::WithInsertPoint before(node);
  auto constant = [&](auto value) { return graph.insertConstant(value); };
  auto layers = torch::jit::constant_as<int64_t>(InputOf(node, "num_layers"));
  auto two_ways = torch::jit::constant_as<bool>(InputOf(node, "bidirectional"));
  Value *params = InputOf(node, "params"), *hidden = InputOf(node, "hx");
  if (!InputOf(node, "input") || !layers || !two_ways || !params ||
      params->node()->kind() != torch::jit::prim::ListConstruct)
    throw Error(
        model.file + ": " + node->kind().toUnqualString() + std::string(", ") + Origin(node),
        "has dropout between its layers and a packed sequence, whose dropout cannot be "
        "repeated on every rank",
        "set dropout=0 and put torch.nn.Dropout between single-layer RNNs");
  if (*layers < 2) {  // nothing to drop
    auto index = node->schema().argumentIndexWithName("dropout");
    node->replaceInput(static_cast<size_t>(*index), constant(0.0));
    return;
  }
  const bool lstm = node->kind() == c10::Symbol::aten("lstm");
  const int64_t directions = *two_ways ? 2 : 1;
  std::vector<Value*> weights = params->node()->inputs().vec();
  size_t per_layer = weights.size() / static_cast<size_t>(*layers);
  std::vector<Value*> states = {hidden};
  if (lstm) {
    Node* list = hidden->node();
    if (list->kind() == torch::jit::prim::ListConstruct)
      states = list->inputs().vec();
    else
      states = graph.insertNode(graph.createListUnpack(hidden, 2))->outputs().vec();
  }
  Value* x = InputOf(node, "input");
  std::vector<std::vector<Value*>> last(states.size());  // by layer
  for (int64_t layer = 0; layer < *layers; ++layer) {
    std::vector<Value*> own;
    for (Value* state : states)
      own.push_back(graph.insert(
          c10::aten::narrow,
          {state, constant(int64_t{0}), constant(layer * directions), constant(directions)}));
    auto from = weights.begin() + static_cast<long>(per_layer) * layer;
    std::vector<Value*> slice(from, from + static_cast<long>(per_layer));
    Value* held = graph.insertNode(graph.createList(c10::TensorType::get(), slice))->output();
    std::vector<Value*> inputs = node->inputs().vec();
    auto set = [&](const char* name, Value* value) {
      inputs[static_cast<size_t>(*node->schema().argumentIndexWithName(name))] = value;
    };
    set("input", x);
    set("params", held);
    set("num_layers", constant(int64_t{1}));
    set("dropout", constant(0.0));
    set("hx",
        lstm ? graph.insertNode(graph.createList(c10::TensorType::get(), own))->output() : own[0]);
    Node* one = graph.insertNode(graph.create(node->kind(), inputs, node->outputs().size()));
    one->copyMetadata(node);
    for (size_t i = 0; i < states.size(); ++i) last[i].push_back(one->outputs()[i + 1]);
    x = one->outputs()[0];
    if (layer + 1 == *layers) break;
    x = graph.insert(c10::aten::dropout, {x, InputOf(node, "dropout"), InputOf(node, "train")});
    x->node()->copyMetadata(node);
  }
  std::vector<Value*> results = {x};
  for (const std::vector<Value*>& parts : last)
    results.push_back(
        graph.insert(c10::aten::cat,
                     {graph.insertNode(graph.createList(c10::TensorType::get(), parts))->output(),
                      constant(int64_t{0})}));
  for (size_t i = 0; i < results.size(); ++i) {
    Value* old = node->outputs()[i];
    const std::string name = old->hasDebugName() ? old->debugName() : "";
    old->replaceAllUsesWith(results[i]);
    if (name.empty()) continue;
    old->setDebugName("");
    results[i]->setDebugName(name);
  }
  for (auto made = node->prev();
       made && !made->sourceRange().source() && made != model.graph->param_node() &&
       made->kind() != torch::jit::prim::Return;
       made = made->prev())
    made->copyMetadata(node);
  node->destroy();
}

}  // namespace

void SplitRnnDropout(Model& model) {
  static const std::set<std::string> kRnns = {"lstm", "gru", "rnn_tanh", "rnn_relu"};
  for (Node* node : AllNodes(*model.graph)) {
    const ErrorContext here(node);
    if (!node->kind().is_aten() || !kRnns.count(node->kind().toUnqualString())) continue;
    if (torch::jit::constant_as<double>(InputOf(node, "dropout")).value_or(1) == 0) continue;
    if (torch::jit::constant_as<bool>(InputOf(node, "train")) == false) continue;
    Split(model, node);
  }
}

}  // namespace pipewright
