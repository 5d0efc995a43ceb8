#include "passes/name_writes.h"

#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

void NameWrites(Model& model) {
  for (Node* node : model.graph->nodes()) {
    Value* written = Returned(node);
    if (!written) continue;
    const bool weight = written->node() == model.graph->param_node() &&
                        written->offset() < model.weights.size();
    if (!weight) written->replaceAllUsesAfterNodeWith(node, node->output());
  }
}

}  // namespace pipewright
