#include "passes/graph/unset.h"

#include <algorithm>

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;
namespace prim = torch::jit::prim;

static bool Raises(const Block* block) {
  const auto nodes = block->nodes();
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const Node* node) { return node->kind() == prim::RaiseException; });
}

bool MayBeUnset(const torch::jit::Value* value) {
  if (value->node()->kind() == prim::Uninitialized) return true;
  if (value->node()->kind() == prim::Loop) {
    // The inputs start with the trip count and the condition; the block's outputs start with the
    // condition.
    const Node* loop = value->node();
    return MayBeUnset(loop->inputs()[value->offset() + 2]) ||
           MayBeUnset(loop->blocks()[0]->outputs()[value->offset() + 1]);
  }
  if (value->node()->kind() != prim::If) return false;
  const auto blocks = value->node()->blocks();
  return std::any_of(blocks.begin(), blocks.end(), [&](const Block* block) {
    const torch::jit::Value* given = block->outputs()[value->offset()];
    // A value from outside the branch is set where the condition chose the branch.
    const bool own = given->node()->owningBlock() == block;
    return !Raises(block) && (own || given->node()->kind() == prim::Uninitialized) &&
           MayBeUnset(given);
  });
}

}  // namespace pipewright
