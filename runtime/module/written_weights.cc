#include "runtime/module/written_weights.h"

#include <algorithm>

#include "passes/graph/hidden_memory.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

// Returns the name of the weight that the value is, or "".
static std::string WeightOf(const Value* value) {
  return value->node()->kind() == torch::jit::prim::GetAttr
             ? value->node()->s(torch::jit::attr::name)
             : "";
}

std::vector<WrittenWeight> WrittenWeights(torch::jit::Graph& graph, const ModuleInfo& info,
                                          WeightKind kind) {
  const std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  std::vector<Write> writes;
  for (size_t i = 0; i < nodes.size(); ++i) CollectWrites(nodes[i], i, writes);
  std::vector<WrittenWeight> written;
  if (writes.empty()) return written;
  Memory memory(nodes, Alias::kKnown);
  for (const Write& write : writes)
    for (const Value* value : memory.Written(write)) {
      const std::string name = WeightOf(value);
      const bool of_kind = std::any_of(
          info.held.begin(), info.held.end(),
          [&](const WeightInfo& weight) { return weight.name == name && weight.kind == kind; });
      if (of_kind) written.push_back({name, write.node, IsBehindAutograd(write, nodes, memory)});
    }
  return written;
}

bool IsCount(torch::jit::Graph& graph, const std::string& weight) {
  for (const Node* node : AllNodes(graph)) {
    if (node->kind() != torch::jit::prim::GetAttr || WeightOf(node->output()) != weight) continue;
    for (const torch::jit::Use& use : node->output()->uses())
      if (use.user->kind() != c10::aten::add_ || use.offset != 0 || use.user->output()->hasUses())
        return false;
  }
  return true;
}

}  // namespace pipewright
