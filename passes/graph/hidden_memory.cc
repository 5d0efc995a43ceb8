#include "passes/graph/hidden_memory.h"

#include <set>
#include <string>

namespace pipewright {

bool HidesMemory(const torch::jit::Node* node) {
  static const std::set<std::string> kNames = {"aten::unsafe_chunk", "aten::unsafe_split",
                                               "aten::unsafe_split_with_sizes",
                                               "aten::_unsafe_view", "aten::data", "prim::data"};
  return kNames.count(node->kind().toQualString()) > 0;
}

bool IsBehindAutograd(const Write& write, const std::vector<torch::jit::Node*>& nodes,
                      Memory& memory) {
  const torch::jit::Value* value = write.value;
  while (!HidesMemory(value->node())) {
    const torch::jit::Node* node = value->node();
    const bool whole = node->kind() == torch::jit::prim::GetAttr ||
                       node == node->owningGraph()->param_node();
    if (whole || node->kind() == torch::jit::prim::Constant) return false;
    if (!node->kind().is_aten() || node->inputs().empty()) break;
    value = node->input(0);
  }
  if (HidesMemory(value->node())) return true;
  const Memory::Values written = memory.Written(write);
  for (torch::jit::Node* top : nodes)
    for (const torch::jit::Node* node : WithInner(top))
      if (HidesMemory(node) && Intersect(memory.Of(node->output()), written)) return true;
  return false;
}

}  // namespace pipewright
