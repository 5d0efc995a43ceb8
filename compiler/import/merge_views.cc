// A part of adapt_weights.h: merges weights that overlap in storage.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "compiler/import/adapt_weights.h"
#include "formats/weights/shared_tensors.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

// Returns the sorted offsets of the weight's elements in its storage, or nothing if they are too
// many.
std::vector<int64_t> ElementOffsets(const Weight& weight) {
  std::vector<int64_t> offsets = {weight.storage_offset};
  for (size_t d = 0; d < weight.shape.size(); ++d) {
    std::vector<int64_t> more;
    if (static_cast<int64_t>(offsets.size()) * weight.shape[d] > 20'000'000) return {};
    for (int64_t i = 0; i < weight.shape[d]; ++i)
      for (int64_t at : offsets) more.push_back(at + i * weight.strides[d]);
    offsets = std::move(more);
  }
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

bool Disjoint(const Weight& a, const Weight& b) {
  if (a.dtype != b.dtype) return false;
  std::vector<int64_t> x = ElementOffsets(a), y = ElementOffsets(b), both;
  if (x.empty() || y.empty()) return false;
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
  return both.empty();
}

TensorExtent ExtentOf(const Weight& weight, size_t index) {
  TensorExtent extent;
  extent.name = std::to_string(index);
  uint64_t size = c10::elementSize(weight.dtype);
  uint64_t last = static_cast<uint64_t>(weight.storage_offset), count = 1;
  for (size_t d = 0; d < weight.shape.size(); ++d) {
    count *= static_cast<uint64_t>(weight.shape[d]);
    if (count) last += static_cast<uint64_t>(weight.shape[d] - 1) * weight.strides[d];
  }
  extent.bytes = count * size;
  if (count == 0 || weight.absent) return extent;
  extent.storage =
      weight.data.defined()
          ? "memory " + std::to_string(reinterpret_cast<uintptr_t>(weight.data.storage().data()))
          : std::to_string(weight.file) + ":" + std::to_string(weight.file_offset);
  extent.storage_bytes = weight.data.defined() ? weight.data.storage().nbytes() : weight.file_bytes;
  extent.begin = static_cast<uint64_t>(weight.storage_offset) * size;
  extent.end = (last + 1) * size;
  return extent;
}

// Reads `view` from `base` at the insert point.
Node* InsertView(Model& model, size_t base, size_t view) {
  torch::jit::Graph& graph = *model.graph;
  const Weight &from = model.weights[base], &to = model.weights[view];
  // A view that has its own gradient passes none to the base.
  Value* row = graph.insert(c10::aten::detach, {model.weight_input(base)});
  // Makes one row of the base; the view's strides apply to it.
  return graph.insertNode(
      graph.create(c10::aten::as_strided,
                   {row, graph.insertConstant(to.shape), graph.insertConstant(to.strides),
                    graph.insertConstant(to.storage_offset - from.storage_offset)},
                   1));
}

// Reads `view` from `base` again at each use, so that writes to one are visible in the other.
void ReplaceByView(Model& model, size_t base, size_t view) {
  const Weight& to = model.weights[view];
  torch::jit::WithInsertPoint start(*model.graph->nodes().begin());
  Node* node = InsertView(model, base, view);
  std::string name = Identifier(to.names[0]);
  model.weight_input(view)->replaceAllUsesWith(node->output());
  node->output()->setDebugName(name + "_view");
  ValueMeta meta;
  meta.dtype = to.dtype;
  for (int64_t size : to.shape) meta.shape.push_back(std::to_string(size));
  model.meta[node->output()->debugName()] = meta;
}

// Stores the content of `view` also under its own name, as weight files have it: forward copies it
// from `base` after the last operation that uses the base.
void KeepInStep(Model& model, size_t base, size_t view) {
  Memory memory(model, Alias::kUnknown);
  const Value* held = model.weight_input(base);
  Node* last = nullptr;
  for (Node* node : model.graph->nodes())
    for (Node* inner : WithInner(node))
      for (const Value* input : inner->inputs())
        if (HasMemory(input) && memory.Of(input).count(held)) last = node;
  if (!last) return;
  torch::jit::WithInsertPoint place(last->next());
  Node* node = InsertView(model, base, view);
  Node* copy = model.graph->insertNode(
      model.graph->create(c10::Symbol::aten("copy_"),
                          {model.weight_input(view), node->output(),
                           model.graph->insertConstant(false)},
                          1));
  for (Node* made : {node->input(0)->node(), node, copy}) made->copyMetadata(last);
}

bool Dense(const Weight& weight) {
  int64_t expected = 1;
  for (size_t d = weight.shape.size(); d-- > 0;) {
    if (weight.shape[d] != 1 && weight.strides[d] != expected) return false;
    expected *= weight.shape[d];
  }
  return true;
}

}  // namespace

std::vector<std::string> MergeViews(Model& model) {
  std::vector<TensorExtent> extents;
  for (size_t i = 0; i < model.weights.size(); ++i)
    extents.push_back(ExtentOf(model.weights[i], i));
  std::vector<std::string> notes;
  std::vector<size_t> gone;
  std::vector<std::pair<size_t, size_t>> kept;  // base and view
  for (const std::vector<std::string>& group : SharedGroups(extents)) {
    if (group.size() < 2) continue;
    std::vector<size_t> members;
    for (const std::string& name : group) members.push_back(std::stoul(name));
    std::sort(members.begin(), members.end());
    auto covers = [&](size_t a) {
      return Dense(model.weights[a]) && std::all_of(members.begin(), members.end(), [&](size_t b) {
               return extents[a].begin <= extents[b].begin && extents[a].end >= extents[b].end &&
                      model.weights[a].dtype == model.weights[b].dtype;
             });
    };
    auto base = std::find_if(members.begin(), members.end(), covers);
    if (base == members.end()) {
      bool apart = true;
      for (size_t a : members)
        for (size_t b : members)
          apart = apart && (a >= b || Disjoint(model.weights[a], model.weights[b]));
      if (apart) continue;  // e.g. columns of one matrix
      throw Error(model.file,
                  "weights \"" + model.weights[members[0]].names[0] + "\" and \"" +
                      model.weights[members[1]].names[0] +
                      "\" overlap in memory, and none covers the other",
                  "give each its own memory: p.data = p.data.clone()");
    }
    for (size_t member : members) {
      if (member == *base) continue;
      const Weight &from = model.weights[*base], &to = model.weights[member];
      if (from.requires_grad && to.requires_grad)
        throw Error(model.file,
                    "parameters \"" + from.names[0] + "\" and \"" + to.names[0] +
                        "\" overlap in memory, and both are trained",
                    "train one of them, and make the other a view of it in forward");
      if (to.requires_grad)
        throw Error(model.file,
                    "parameter \"" + to.names[0] + "\" is a part of \"" + from.names[0] +
                        "\", which is not trained",
                    "give it its own memory: p.data = p.data.clone()");
      ReplaceByView(model, *base, member);
      // A copy of a trained weight would be a step behind.
      if (to.persistent && to.kind == WeightKind::kBuffer && from.persistent &&
          !from.requires_grad) {
        kept.push_back({*base, member});
        continue;
      }
      notes.push_back("\"" + to.names[0] + "\" is a view of \"" + from.names[0] +
                      "\" and has no memory of its own; files of weights do not name it");
      gone.push_back(member);
    }
  }
  for (const auto& [base, view] : kept) KeepInStep(model, base, view);
  std::sort(gone.begin(), gone.end());
  for (size_t k = gone.size(); k-- > 0;) {
    model.graph->eraseInput(gone[k]);
    model.weights.erase(model.weights.begin() + static_cast<long>(gone[k]));
  }
  return notes;
}

}  // namespace pipewright
