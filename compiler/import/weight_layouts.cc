#include "compiler/import/weight_layouts.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

using Numbers = std::vector<int64_t>;

Numbers ContiguousStrides(const Numbers& shape) {
  Numbers strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;)
    strides[d] = stride, stride *= std::max<int64_t>(1, shape[d]);
  return strides;
}

// Returns true if the weight is contiguous in the order of its dimensions; strides of dimensions of
// size 1 do not matter.
bool LiesInOrder(const Weight& weight) {
  const Numbers wanted = ContiguousStrides(weight.shape);
  for (size_t d = 0; d < wanted.size(); ++d)
    if (weight.shape[d] != 1 && weight.strides[d] != wanted[d]) return false;
  return true;
}

// Returns the order of dimensions in which the weight is contiguous, or nothing if it has gaps.
Numbers OrderInMemory(const Weight& weight) {
  Numbers order(weight.shape.size()), shape, strides;
  std::iota(order.begin(), order.end(), 0);
  auto at = [](const Numbers& of, int64_t d) { return of[static_cast<size_t>(d)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (at(weight.strides, a) != at(weight.strides, b))
      return at(weight.strides, a) > at(weight.strides, b);
    return at(weight.shape, a) > at(weight.shape, b);
  });
  for (int64_t d : order) {
    shape.push_back(at(weight.shape, d));
    strides.push_back(at(weight.strides, d));
  }
  return strides == ContiguousStrides(shape) ? order : Numbers();
}

bool ShareStorage(const Weight& a, const Weight& b) {
  if (a.data.defined() || b.data.defined())
    return a.data.defined() && b.data.defined() &&
           a.data.storage().data() == b.data.storage().data();
  return a.file == b.file && a.file_offset == b.file_offset && a.file_bytes > 0 && b.file_bytes > 0;
}

// Makes `user` read a copy of the weight that is laid out in `order`, with the same dimensions.
void ReadInOrder(Model& model, size_t index, const Numbers& order, Node* user,
                 const std::string& name) {
  torch::jit::Graph& graph = *model.graph;
  const Weight& weight = model.weights[index];
  torch::jit::WithInsertPoint before(user);
  Numbers back(order.size());
  for (size_t d = 0; d < order.size(); ++d)
    back[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
  Value* value = model.weight_input(index);
  auto add = [&](const char* name, const std::vector<Value*>& more) {
    std::vector<Value*> inputs = {value};
    inputs.insert(inputs.end(), more.begin(), more.end());
    Node* node = graph.insertNode(graph.create(c10::Symbol::aten(name), inputs, 1));
    node->copyMetadata(user);
    value = node->output();
  };
  add("permute", {graph.insertConstant(order)});
  add("clone", {graph.insertConstant(static_cast<int64_t>(at::MemoryFormat::Contiguous))});
  add("permute", {graph.insertConstant(back)});
  user->replaceInputWith(model.weight_input(index), value);
  value->setDebugName(name);
  ValueMeta meta;
  meta.dtype = weight.dtype;
  for (int64_t size : weight.shape) meta.shape.push_back(std::to_string(size));
  model.meta[value->debugName()] = meta;
}

}  // namespace

void KeepLayouts(Model& model) {
  std::vector<size_t> reordered;
  for (size_t i = 0; i < model.weights.size(); ++i) {
    Weight& weight = model.weights[i];
    const bool empty = std::count(weight.shape.begin(), weight.shape.end(), 0) > 0;
    weight.own_layout = !empty && !LiesInOrder(weight);
    if (!empty && weight.strides != ContiguousStrides(weight.shape)) reordered.push_back(i);
  }
  if (reordered.empty()) return;
  std::vector<Write> writes;
  for (Node* node : model.graph->nodes()) CollectWrites(node, 0, writes);
  Memory memory(model, Alias::kUnknown);
  Memory::Values written;
  for (const Write& write : writes) written.merge(memory.Written(write));
  for (size_t i : reordered) {
    Value* weight = model.weight_input(i);
    const Numbers order = OrderInMemory(model.weights[i]);
    // A part of another weight is read from that weight, and sees writes to it.
    const Weight& own = model.weights[i];
    const bool shares =
        std::any_of(model.weights.begin(), model.weights.end(), [&](const Weight& other) {
          return &other != &own && ShareStorage(own, other);
        });
    if (order.empty() || shares || written.count(weight)) continue;
    model.weights[i].own_layout = false;
    std::vector<Node*> users;
    for (const torch::jit::Use& use : weight->uses())
      if (std::find(users.begin(), users.end(), use.user) == users.end())
        users.push_back(use.user);
    const std::string name = Identifier(model.weights[i].names[0]) + "_in_order";
    for (size_t k = 0; k < users.size(); ++k)
      ReadInOrder(model, i, order, users[k], k ? name + "_" + std::to_string(k + 1) : name);
  }
}

}  // namespace pipewright
