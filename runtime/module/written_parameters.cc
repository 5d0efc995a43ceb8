#include "runtime/module/written_parameters.h"

#include <algorithm>
#include <set>

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

// Returns the weights that are used by an embedding and its max_norm alone.
static std::set<std::string> OnlyEmbedded(const std::vector<Node*>& nodes) {
  std::set<std::string> embedded, other;
  for (Node* top : nodes)
    for (const Node* node : WithInner(top))
      for (const Value* input : node->inputs())
        if (const std::string name = WeightOf(input); !name.empty()) {
          const std::string kind = node->kind().toUnqualString();
          (kind.starts_with("embedding") ? embedded : other).insert(name);
        }
  for (const std::string& name : other) embedded.erase(name);
  return embedded;
}

std::vector<WrittenParameter> WrittenParameters(torch::jit::Graph& graph,
                                                const ModuleInfo& info) {
  const std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  std::vector<Write> writes;
  for (size_t i = 0; i < nodes.size(); ++i) CollectWrites(nodes[i], i, writes);
  std::vector<WrittenParameter> written;
  if (writes.empty()) return written;
  const std::set<std::string> embedded = OnlyEmbedded(nodes);
  Memory memory(nodes, Alias::kKnown);
  for (const Write& write : writes)
    for (const Value* value : memory.Written(write)) {
      const std::string name = WeightOf(value);
      const bool parameter =
          std::any_of(info.held.begin(), info.held.end(), [&](const WeightInfo& weight) {
            return weight.name == name && weight.kind == "parameter";
          });
      if (parameter && !embedded.count(name))
        written.push_back({name, write.node, IsBehindAutograd(write.value)});
    }
  return written;
}

}  // namespace pipewright
