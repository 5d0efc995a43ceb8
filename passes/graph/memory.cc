#include "passes/graph/memory.h"

#include <algorithm>

#include "ops/statistics.h"
#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

static bool IsContainer(const Value* value) {
  const auto kind = value->type()->kind();
  return kind == c10::TypeKind::ListType || kind == c10::TypeKind::DictType ||
         kind == c10::TypeKind::TupleType;
}

static bool HoldsTensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::VarType:
      return true;
    default:
      return std::any_of(type->containedTypes().begin(), type->containedTypes().end(),
                         HoldsTensors);
  }
}

// Returns true for append, insert, __setitem__ and the like, which change a list or dict but not
// its elements.
static bool ChangesContainer(const Node* node, const Value* written) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  return IsContainer(written) && schema && OfTorchScriptAlone(*schema);
}

bool HasMemory(const Value* value) {
  switch (value->type()->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::ListType:
    case c10::TypeKind::DictType:
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::TupleType:
      return true;
    default:
      return false;
  }
}

bool Intersect(const Memory::Values& a, const Memory::Values& b) {
  return std::any_of(a.begin(), a.end(), [&](const Value* value) { return b.count(value) > 0; });
}

static std::vector<Node*> TopNodes(const Model& model) {
  return {model.graph->nodes().begin(), model.graph->nodes().end()};
}

Memory::Memory(const Model& model, Alias least, bool of_gradients)
    : Memory(TopNodes(model), least, of_gradients) {}

Memory::Memory(const std::vector<Node*>& nodes, Alias least, bool of_gradients) {
  for (Node* top : nodes)
    for (Node* node : WithInner(top)) {
      const ErrorContext here(node);
      Collect(node, least, of_gradients);
    }
  for (bool changed = true; changed;) {  // values flow backward through loops and lists
    changed = false;
    for (const auto& [from, to] : flows_) changed = Flow(from, to) || changed;
    for (const auto& [item, list] : puts_)
      for (const Value* held : Values(Of(list))) {
        if (!IsContainer(held)) continue;
        Values& put = put_[held];
        const size_t before = put.size();
        put.insert(Of(item).begin(), Of(item).end());
        changed = changed || put.size() != before;
      }
    if (put_.empty()) continue;
    for (auto& [value, values] : of_)
      for (const Value* held : Values(values))
        if (auto put = put_.find(held); put != put_.end() && IsContainer(value))
          for (const Value* item : put->second) changed = values.insert(item).second || changed;
  }
  for (auto& [value, values] : of_)  // results of lists that hold nothing
    if (values.empty()) values.insert(value);
}

void Memory::Collect(Node* node, Alias least, bool of_gradients) {
  if (of_gradients && node->kind() == c10::aten::detach) return;
  auto flow = [&](const Value* from, const Value* to) {
    if (!HasMemory(from) || !HasMemory(to)) return;
    // Sizes do not refer to a tensor's memory.
    const bool tensors = HoldsTensors(from->type());
    if (tensors ? !HoldsTensors(to->type()) : to->type()->kind() == c10::TypeKind::TensorType)
      return;
    flows_.emplace_back(from, to);
    auto [source, only] = view_of_.try_emplace(to, IsContainer(from) ? nullptr : from);
    if (!only && source->second != from) source->second = nullptr;
    if (IsContainer(to)) holders_.insert(to);
  };
  if (!node->blocks().empty()) {
    const bool loop = node->kind() == prim::Loop;
    for (const Block* block : node->blocks())
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        // A loop has a trip count and a condition before its carried values; its body has a counter
        // and the next condition.
        const Value* left = block->outputs()[i + (loop ? 1 : 0)];
        flow(left, node->outputs()[i]);
        if (!loop) continue;
        flow(node->inputs()[i + 2], node->outputs()[i]);
        flow(node->inputs()[i + 2], block->inputs()[i + 1]);
        flow(left, block->inputs()[i + 1]);
      }
    return;
  }
  for (size_t o = 0; o < node->outputs().size(); ++o) {
    if (!HasMemory(node->outputs()[o])) continue;
    for (size_t i = 0; i < node->inputs().size(); ++i)
      if (HasMemory(node->inputs()[i]) && AliasOf(node, i, o) >= least)
        flow(node->inputs()[i], node->outputs()[o]);
    if (node->kind() == prim::ListConstruct || node->kind() == prim::DictConstruct)
      holders_.insert(node->outputs()[o]);
  }
  std::vector<Write> writes;
  CollectWrites(node, 0, writes);
  for (const Write& write : writes)
    if (ChangesContainer(node, write.value))
      for (const Value* item : node->inputs())
        if (item != write.value && HasMemory(item)) {
          puts_.emplace_back(item, write.value);
          holders_.insert(write.value);
        }
}

const Memory::Values& Memory::Of(const Value* value) {
  auto [at, fresh] = of_.try_emplace(value);
  if (fresh) at->second.insert(value);
  return at->second;
}

// A list is an object apart from its elements; a tensor taken out of it is not part of that object.
bool Memory::Flow(const Value* from, const Value* to) {
  const Values source = Of(from);
  auto [at, fresh] = of_.try_emplace(to);
  if (fresh && IsContainer(to)) at->second.insert(to);
  const size_t before = at->second.size();
  for (const Value* value : source)
    if (to->type()->kind() != c10::TypeKind::TensorType || !holders_.count(value))
      at->second.insert(value);
  return at->second.size() != before;
}

const Value* Memory::ViewedBy(const Value* value) const {
  auto at = view_of_.find(value);
  for (; at != view_of_.end() && at->second; at = view_of_.find(value)) value = at->second;
  return value;
}

Memory::Values Memory::Written(const Write& write) {
  Values written = Of(write.value);
  if (ChangesContainer(write.node, write.value))
    std::erase_if(written, [](const Value* value) { return !IsContainer(value); });
  return written;
}

bool Memory::Share(const Value* a, const Value* b) { return Intersect(Of(a), Of(b)); }

void CollectWrites(Node* top, size_t position, std::vector<Write>& writes) {
  for (Node* node : WithInner(top)) {
    const ErrorContext here(node);
    if (WritesStatistics(node))
      for (size_t i : {kRunningMean, kRunningVariance})
        if (HasMemory(node->input(i))) writes.push_back({top, node, node->input(i), position});
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (!schema || IsNormInEvaluation(node)) continue;
    for (size_t i = 0; i < node->inputs().size(); ++i)
      if (HasMemory(node->inputs()[i]) && WritesTo(*schema, i))
        writes.push_back({top, node, node->inputs()[i], position});
  }
}

Value* Returned(Node* node) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (!schema || !schema->is_mutable() || schema->returns().size() != 1) return nullptr;
  const c10::AliasInfo* returned = schema->returns()[0].alias_info();
  if (!returned || !returned->isWrite()) return nullptr;
  for (size_t i = 0; i < node->inputs().size() && i < schema->arguments().size(); ++i) {
    const c10::AliasInfo* taken = schema->arguments()[i].alias_info();
    if (taken && taken->isWrite() && taken->beforeSets() == returned->beforeSets() &&
        node->input(i)->type()->kind() == c10::TypeKind::TensorType)
      return node->input(i);
  }
  return nullptr;
}

}  // namespace pipewright
