#include "passes/memory.h"

#include <algorithm>

#include "passes/statistics.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

int MemoryClasses::Find(const Value* value) {
  auto [at, fresh] = ids_.try_emplace(value, static_cast<int>(parent_.size()));
  if (fresh) parent_.push_back(at->second);
  int id = at->second;
  auto parent = [&](int of) -> int& { return parent_[static_cast<size_t>(of)]; };
  while (parent(id) != id) id = parent(id) = parent(parent(id));
  return id;
}

void MemoryClasses::Join(const Value* a, const Value* b) {
  int x = Find(a), y = Find(b);
  if (x != y) parent_[static_cast<size_t>(std::max(x, y))] = std::min(x, y);
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

namespace {

// Dropout hands its input on where it does nothing, which its schema does not say.
bool MayReturnInput(const Node* node) {
  return std::string(node->kind().toUnqualString()).find("dropout") != std::string::npos;
}

// Holds or hands on what it is given; its schema, if any, does not say.
bool IsStructure(const Node* node) {
  return node->kind() == prim::ListConstruct || node->kind() == prim::ListUnpack ||
         node->kind() == prim::TupleConstruct || node->kind() == prim::TupleUnpack ||
         node->kind() == prim::TupleIndex || node->kind() == prim::DictConstruct ||
         node->kind() == prim::unchecked_cast;
}

// What enters a block and what leaves it.
void JoinBlocks(const Node* node, MemoryClasses& classes) {
  auto join = [&](const Value* a, const Value* b) {
    if (HasMemory(a) && HasMemory(b)) classes.Join(a, b);
  };
  bool loop = node->kind() == prim::Loop;
  for (const Block* block : node->blocks()) {
    // A loop has a trip count and a condition before what it carries; its body, a counter and the
    // next condition.
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      join(block->outputs()[i + (loop ? 1 : 0)], node->outputs()[i]);
      if (!loop) continue;
      join(block->inputs()[i + 1], node->outputs()[i]);
      join(node->inputs()[i + 2], node->outputs()[i]);
    }
  }
}

}  // namespace

void JoinNode(Node* top, MemoryClasses& classes) {
  for (Node* node : WithInner(top)) {
    if (!node->blocks().empty()) {
      JoinBlocks(node, classes);
      continue;
    }
    bool structure = IsStructure(node);
    const c10::FunctionSchema* schema = structure ? nullptr : node->maybeSchema();
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      if (!HasMemory(node->outputs()[o])) continue;
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        if (!HasMemory(node->inputs()[i])) continue;
        if (structure || (i == 0 && MayReturnInput(node)) ||
            (schema && o >= schema->returns().size()) ||  // as many results as it takes: unknown
            (schema && i < schema->arguments().size() &&
             schema->may_contain_alias({c10::SchemaArgType::input, i},
                                       {c10::SchemaArgType::output, o})))
          classes.Join(node->inputs()[i], node->outputs()[o]);
      }
    }
  }
}

void CollectWrites(Node* top, size_t position, std::vector<Write>& writes) {
  for (Node* node : WithInner(top)) {
    if (WritesStatistics(node))
      for (size_t i : {kRunningMean, kRunningVariance})
        if (HasMemory(node->input(i))) writes.push_back({top, node, node->input(i), position});
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (!schema || !schema->is_mutable()) continue;
    for (size_t i = 0; i < node->inputs().size() && i < schema->arguments().size(); ++i)
      if (schema->is_mutable({c10::SchemaArgType::input, i}) && HasMemory(node->inputs()[i]))
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
