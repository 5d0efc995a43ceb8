#include "runtime/module/table_uses.h"

namespace pipewright {

std::vector<TableUse> TableUses(const torch::jit::Graph& graph) {
  std::vector<TableUse> uses;
  for (const torch::jit::Node* node : graph.nodes()) {
    if (node->kind() != c10::aten::embedding ||
        node->input(0)->node()->kind() != torch::jit::prim::GetAttr)
      continue;
    for (size_t i = 1; i < graph.inputs().size(); ++i)
      if (graph.inputs()[i] == node->input(1))
        uses.push_back({i, node->input(0)->node()->s(torch::jit::attr::name)});
  }
  return uses;
}

}  // namespace pipewright
