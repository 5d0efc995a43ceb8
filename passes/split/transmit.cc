#include "passes/split/transmit.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "passes/graph/error_context.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

SharedSpec ParseShared(const std::string& text) {
  SharedSpec spec;
  if (text.empty() || text == "replicate") return spec;
  if (text == "transmit") {
    spec.transmit = true;
    return spec;
  }
  const std::string prefix = "transmit:";
  if (text.rfind(prefix, 0) == 0) spec.names = Split(text.substr(prefix.size()), ',');
  if (spec.names.empty() || std::count(spec.names.begin(), spec.names.end(), ""))
    throw UsageError("--shared " + text,
                     "unknown value; expected replicate, transmit or transmit:NAME,...");
  return spec;
}

namespace {

using ListsOfModules = std::map<std::pair<Node*, int>, Node*>;

// Returns `node`, or, of a list that the model makes, the module's own copy of it, which its uses
// in the module use from then on.
Node* OwnList(Model& model, ModuleAssignment& assignment, int module, Node* node,
              ListsOfModules& lists) {
  if (node->kind() != torch::jit::prim::ListConstruct ||
      node->owningBlock() != model.graph->block())
    return node;
  Node*& own = lists[{node, module}];
  if (own) return own;
  const auto type = node->output()->type()->expect<c10::ListType>()->getElementType();
  own = model.graph->createList(type, node->inputs());
  own->copyMetadata(node);
  Node* first = nullptr;
  for (const torch::jit::Use& use : std::vector(node->output()->uses())) {
    Node* top = use.user;
    while (top->owningBlock() != model.graph->block()) top = top->owningBlock()->owningNode();
    const auto found = assignment.module_of.find(top);
    if (found == assignment.module_of.end() || found->second != module) continue;
    use.user->replaceInput(use.offset, own->output());
    if (!first || top->isBefore(first)) first = top;
  }
  own->insertBefore(first);
  assignment.module_of[own] = module;
  return own;
}

}  // namespace

void TransmitShared(Model& model, ModuleAssignment& assignment, const SharedSpec& spec) {
  std::vector<std::string> all;
  for (const Weight& weight : model.weights)
    all.insert(all.end(), weight.names.begin(), weight.names.end());
  for (const std::string& name : spec.names)
    if (std::find(all.begin(), all.end(), name) == all.end())
      throw Error("--shared transmit:" + name,
                  "the model has no weight \"" + name + "\"" + Suggest(name, all));
  if (!spec.transmit && spec.names.empty()) return;
  Memory memory(model, Alias::kKnown);
  std::vector<Write> writes;
  std::map<int, Node*> last;                                                 // by module
  std::map<const Value*, std::map<int, std::vector<torch::jit::Use>>> uses;  // by module
  for (Node* top : model.graph->nodes()) {
    const ErrorContext here(top);
    CollectWrites(top, 0, writes);
    int module = assignment.module_of.at(top);
    if (top->kind() != torch::jit::prim::Constant) last[module] = top;
    for (Node* node : WithInner(top))
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        Value* input = node->inputs()[i];
        if (input->node() != model.graph->param_node() || input->offset() >= model.weights.size())
          continue;
        // A list belongs to its users.
        std::set<int> modules = {module};
        if (top->kind() == torch::jit::prim::ListConstruct) {
          modules.clear();
          for (const auto& use : top->output()->uses()) {
            Node* user = use.user;
            while (user->owningBlock() != model.graph->block())
              user = user->owningBlock()->owningNode();
            auto found = assignment.module_of.find(user);
            if (found != assignment.module_of.end()) modules.insert(found->second);
          }
        }
        for (int m : modules) uses[input][m].emplace_back(node, i);
      }
  }
  ListsOfModules lists;
  for (size_t w = 0; w < model.weights.size(); ++w) {
    Value* weight = model.weight_input(w);
    const std::vector<std::string>& names = model.weights[w].names;
    bool chosen = spec.transmit && model.weights[w].kind == WeightKind::kParameter;
    for (const std::string& name : spec.names)
      chosen = chosen || std::find(names.begin(), names.end(), name) != names.end();
    if (!chosen || uses[weight].size() < 2) continue;
    for (const Write& write : writes)
      if (memory.Written(write).count(weight))
        throw Error(model.file + ": " + Origin(write.node),
                    "writes in place to \"" + names[0] + "\", which is to be transmitted",
                    "replicate it: --shared replicate");
    int home = uses[weight].begin()->first;
    Node* alias = model.graph->create(c10::Symbol::aten("alias"), {weight}, 1);
    alias->insertAfter(last.at(home));
    last[home] = alias;
    assignment.module_of[alias] = home;
    alias->copyMetadata(uses[weight].begin()->second[0].user);
    alias->output()->setDebugName(Identifier(names[0]) + "_sent");
    ValueMeta meta;
    meta.dtype = model.weights[w].dtype;
    for (int64_t size : model.weights[w].shape) meta.shape.push_back(std::to_string(size));
    model.meta[alias->output()->debugName()] = meta;
    for (auto& [module, list] : uses[weight])
      if (module != home)
        for (const torch::jit::Use& use : list)
          OwnList(model, assignment, module, use.user, lists)
              ->replaceInput(use.offset, alias->output());
    assignment.notes.emplace_back(home, "\"" + names[0] + "\" lives here and is sent on");
  }
  std::set<Node*> unused;
  for (const auto& [list, own] : lists)
    if (!list.first->hasUses()) unused.insert(list.first);
  for (Node* list : unused) {
    assignment.module_of.erase(list);
    list->destroy();
  }
}

}  // namespace pipewright
