#include "passes/restore_devices.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;

void RestoreDevices(Model& model) {
  std::vector<Block*> blocks = {model.graph->block()};
  while (!blocks.empty()) {
    Block* block = blocks.back();
    blocks.pop_back();
    for (Node* node : block->nodes()) {
      for (Block* inner : node->blocks()) blocks.push_back(inner);
      const bool asked = node->kind() == torch::jit::prim::device;  // x.device
      if (!asked && node->kind() != torch::jit::prim::Constant) continue;
      if (node->output()->type()->kind() == c10::TypeKind::DeviceObjType)
        node->output()->replaceAllUsesWith(model.device());
    }
  }
}

}  // namespace pipewright
