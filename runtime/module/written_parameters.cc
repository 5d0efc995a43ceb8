#include "runtime/module/written_parameters.h"

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

std::vector<WrittenParameter> WrittenParameters(torch::jit::Graph& graph,
                                                const ModuleInfo& info) {
  const std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  std::vector<Write> writes;
  for (size_t i = 0; i < nodes.size(); ++i) CollectWrites(nodes[i], i, writes);
  std::vector<WrittenParameter> written;
  if (writes.empty()) return written;
  Memory memory(nodes, Alias::kKnown);
  for (const Write& write : writes)
    for (const Value* value : memory.Written(write)) {
      const std::string name = WeightOf(value);
      const bool parameter =
          std::any_of(info.held.begin(), info.held.end(), [&](const WeightInfo& weight) {
            return weight.name == name && weight.kind == WeightKind::kParameter;
          });
      if (parameter)
        written.push_back({name, write.node, IsBehindAutograd(write, nodes, memory)});
    }
  return written;
}

}  // namespace pipewright
