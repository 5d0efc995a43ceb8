#include "passes/split/sort_modules.h"

#include <algorithm>

#include "base/error.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;

void SortByModule(Model& model, const ModuleAssignment& assignment) {
  std::vector<Node*> nodes(model.graph->nodes().begin(), model.graph->nodes().end());
  Memory memory(nodes, Alias::kKnown);
  std::vector<Write> writes;
  for (size_t i = 0; i < nodes.size(); ++i) CollectWrites(nodes[i], i, writes);
  auto module = [&](const Node* node) { return assignment.module_of.at(node); };
  std::map<const torch::jit::Value*, std::vector<const Write*>> writes_of;  // by memory
  for (const Write& write : writes)
    for (const auto* value : memory.Written(write)) writes_of[value].push_back(&write);
  for (size_t i = 0; i < nodes.size() && !writes.empty(); ++i) {
    for (Node* node : WithInner(nodes[i]))
      for (const auto* input : node->inputs()) {
        if (!HasMemory(input)) continue;
        std::vector<const Write*> seen;
        for (const auto* value : memory.Of(input))
          if (auto found = writes_of.find(value); found != writes_of.end())
            seen.insert(seen.end(), found->second.begin(), found->second.end());
        for (const Write* write : seen) {
          int here = module(nodes[i]), there = module(write->top);
          if ((write->position < i && there <= here) || (write->position >= i && here <= there))
            continue;
          throw Error(
              model.file + ": " + write->node->kind().toUnqualString() + ", " + Origin(write->node),
              "writes in place, in module " + std::to_string(there) + ", to memory that " +
                  Origin(node) + " uses in module " + std::to_string(here) +
                  ": the order of the two would change",
              "put both in one module, or use the operation that makes a new tensor");
        }
      }
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](const Node* a, const Node* b) { return module(a) < module(b); });
  for (Node* node : nodes) node->moveBefore(model.graph->return_node());
}

}  // namespace pipewright
