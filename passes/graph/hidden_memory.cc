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

bool IsBehindAutograd(const torch::jit::Value* value) {
  while (!HidesMemory(value->node())) {
    if (!value->node()->kind().is_aten() || value->node()->inputs().empty()) return false;
    value = value->node()->input(0);
  }
  return true;
}

}  // namespace pipewright
