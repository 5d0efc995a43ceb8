#include "passes/split/show_writes.h"

#include <torch/csrc/jit/ir/alias_analysis.h>

#include <algorithm>
#include <functional>
#include <set>

#include "ops/statistics.h"
#include "passes/graph/error_context.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

static const c10::Symbol kSeen = c10::Symbol::fromQualString("pipewright::seen");

// Inserts pipewright::seen into `nodes`. `used_norms` includes norms whose result is used, because
// LibTorch may drop that use later. `made` is called with each node inserted at the graph's top
// level.
static void Show(torch::jit::Graph& graph, const std::vector<Node*>& nodes,
                 const torch::jit::AliasDb& aliases, bool used_norms,
                 const std::function<void(Node*)>& made) {
  Memory memory(nodes, Alias::kUnknown);
  std::vector<Write> writes;
  for (Node* node : nodes) CollectWrites(node, 0, writes);
  const std::set<Node*> own(nodes.begin(), nodes.end());
  std::set<Value*> shown;
  auto show = [&](Value* value, const Write& write) {
    if (value != write.value && !shown.insert(value).second) return;
    Node* top = value->node();
    while (top->owningBlock() != graph.block()) top = top->owningBlock()->owningNode();
    Node* seen = graph.create(kSeen, {value}, 0);
    seen->copyMetadata(write.node);
    if (value == write.value)
      seen->insertAfter(write.node);
    else if (!own.count(top))  // an input of the module
      seen->insertBefore(write.top);
    else if (value->node()->kind() == torch::jit::prim::Param)
      seen->insertBefore(*value->node()->owningBlock()->nodes().begin());
    else
      seen->insertAfter(value->node());
    if (seen->owningBlock() == graph.block()) made(seen);
  };
  auto is_tensor = [](const Value* value) {
    return value->type()->kind() == c10::TypeKind::TensorType;
  };
  // Returns true if another value lies in the memory, and LibTorch does not know of that.
  auto is_shared = [&](const Write& write) {
    const Memory::Values written = memory.Written(write);
    auto unknown = [&](const Value* value) {
      return is_tensor(value) && value->hasUses() && Intersect(memory.Of(value), written) &&
             !aliases.mayAlias(value, write.value);
    };
    for (Node* top : nodes)
      for (const Node* node : WithInner(top))
        if (std::any_of(node->inputs().begin(), node->inputs().end(), unknown) ||
            std::any_of(node->outputs().begin(), node->outputs().end(), unknown))
          return true;
    return false;
  };
  for (const Write& write : writes) {
    const ErrorContext here(write.node);
    // LibTorch does not know that a norm writes its statistics, and drops one whose result is
    // unused.
    if (WritesStatistics(write.node) && (used_norms || write.node->output()->uses().empty()))
      show(write.node->output(), write);
    const bool list = !is_tensor(write.value);  // _foreach_add_: LibTorch sees the list change
    if (list && OfTorchScriptAlone(write.node->schema())) continue;
    std::vector<Value*> hidden;
    for (const Value* value : memory.Written(write))
      if (is_tensor(value) && (list || !aliases.mayAlias(value, write.value)))
        hidden.push_back(const_cast<Value*>(value));
    std::sort(hidden.begin(), hidden.end(),
              [](Value* a, Value* b) { return a->debugName() < b->debugName(); });
    if (!hidden.empty() || (!list && is_shared(write))) show(write.value, write);
    for (Value* value : hidden) show(value, write);
  }
}

static bool AnyWrites(torch::jit::Graph& graph) {
  std::vector<Write> writes;
  for (Node* node : graph.nodes()) CollectWrites(node, 0, writes);
  return !writes.empty();
}

void ShowWrites(Model& model, ModuleAssignment& assignment) {
  if (!AnyWrites(*model.graph)) return;
  const torch::jit::AliasDb aliases(model.graph);
  std::vector<std::vector<Node*>> nodes(static_cast<size_t>(assignment.modules));
  for (Node* node : model.graph->nodes()) {
    const ErrorContext here(node);
    nodes[static_cast<size_t>(assignment.module_of.at(node))].push_back(node);
  }
  for (size_t m = 0; m < nodes.size(); ++m)
    Show(*model.graph, nodes[m], aliases, /*used_norms=*/false,
         [&](Node* seen) { assignment.module_of[seen] = static_cast<int>(m); });
}

void ShowWrites(const std::shared_ptr<torch::jit::Graph>& graph) {
  if (!AnyWrites(*graph)) return;
  const torch::jit::AliasDb aliases(graph);
  Show(*graph, {graph->nodes().begin(), graph->nodes().end()}, aliases, /*used_norms=*/true,
       [](Node*) {});
}

void HideWrites(torch::jit::Graph& graph) {
  for (Node* node : AllNodes(graph))
    if (node->kind() == kSeen) node->destroy();
}

}  // namespace pipewright
