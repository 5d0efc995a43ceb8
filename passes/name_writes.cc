#include "passes/name_writes.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

// The input that the node writes to and returns; nullptr: there is none.
static Value* Written(Node* node) {
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

void NameWrites(Model& model) {
  for (Node* node : model.graph->nodes()) {
    Value* written = Written(node);
    if (!written) continue;
    const bool weight = written->node() == model.graph->param_node() &&
                        written->offset() < model.weights.size();
    if (!weight) written->replaceAllUsesAfterNodeWith(node, node->output());
  }
}

}  // namespace pipewright
