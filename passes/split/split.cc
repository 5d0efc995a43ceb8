#include "passes/split/split.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "passes/graph/error_context.h"
#include "passes/split/cuts.h"
#include "passes/split/sort_modules.h"

namespace pipewright {

using torch::jit::Node;

namespace {

// Removes markers; if `cutting`, keeps those at the top level. Throws Error for a marker to cut at
// that lies in a branch or a loop, because one module keeps those whole.
void RemoveMarkers(Model& model, bool cutting) {
  for (Node* node : AllNodes(*model.graph)) {
    const ErrorContext here(node);
    if (!IsMarker(node)) continue;
    if (node->owningBlock() != model.graph->block() && cutting)
      throw Error(
          model.file + ": pipe_split(), " + Origin(node),
          std::string("lies inside ") +
              (node->owningBlock()->owningNode()->kind() == torch::jit::prim::Loop ? "a loop"
                                                                                   : "a branch") +
              " that is decided while the model runs, which one module keeps whole",
          "move it out, or loop over a ModuleList, which is taken apart");
    if (node->owningBlock() != model.graph->block() || !cutting) node->destroy();
  }
}

// Throws Error for a cut between `last` and `node`, inside a region; `cut` names what requested it.
// The switch of a region has no line in the model, so the message may name `last` instead.
[[noreturn]] void RefuseRegion(const Model& model, const std::string& cut, const Node* node,
                               const Node* last, const Regions& regions) {
  const bool placed = IsOperation(node) && node->sourceRange().source();
  if (!placed) node = last;
  throw Error(model.file + ": the cut " + cut + (placed ? ", before " : ", after ") +
                  node->kind().toUnqualString() + " (" + Origin(node) + ")",
              "lies inside " + regions.name(),
              "move the marker out of it, or cut at another submodule");
}

ModuleAssignment AssignRuns(Model& model, const SplitSpec& split) {
  ModuleAssignment out;
  Cuts cuts;
  if (split.kind == SplitSpec::kNames) cuts = CutsAtNames(model, split);
  if (split.kind == SplitSpec::kChildren) cuts = CutsAtChildren(model, split);
  if (split.kind == SplitSpec::kEqual || split.kind == SplitSpec::kBalanced ||
      split.kind == SplitSpec::kSize)
    cuts = CutsByCost(model, split, out.warnings);
  if (split.kind == SplitSpec::kFine) cuts = CutsBetweenSubmodules(model, split);
  out.reasons = {"the start of the model"};
  Regions regions;
  int module = 0;
  bool any = false;  // the module has an operation
  const Node* last = nullptr;
  std::string reason;
  for (auto it = model.graph->nodes().begin(); it != model.graph->nodes().end();) {
    Node* node = *it++;
    auto cut = cuts.find(node);
    if (cut != cuts.end()) reason = cut->second;
    if (IsMarker(node)) reason = "pipe_split(), " + Origin(node);
    if (!reason.empty() && regions.inside)
      RefuseRegion(model, IsMarker(node) ? "of " + reason : reason, node, last, regions);
    if (!reason.empty() && any) {
      ++module, any = false;
      out.reasons.push_back(reason);
    }
    reason.clear();
    if (IsMarker(node)) {
      node->destroy();
      continue;
    }
    regions.Pass(node);
    any = any || IsOperation(node);
    if (IsOperation(node)) last = node;
    out.module_of[node] = module;
  }
  if (!any && module > 0) {  // a marker at the end
    --module;
    out.reasons.pop_back();
    for (auto& entry : out.module_of) entry.second = std::min(entry.second, module);
  }
  out.modules = module + 1;
  return out;
}

// Returns the module that the map assigns to the innermost of the node's submodules that it names,
// or -1.
int Mapped(const SplitSpec& split, const Node* node) {
  std::vector<std::string> stack = ModuleStack(node);
  for (auto path = stack.rbegin(); path != stack.rend(); ++path) {
    std::string name = *path;
    while (true) {
      auto found = split.map.find(name);
      if (found != split.map.end()) return found->second;
      size_t dot = name.rfind('.');
      if (dot == std::string::npos) break;
      name.resize(dot);
    }
    size_t call = path->find('@');  // a further call of a submodule that the map names once
    if (call == std::string::npos) continue;
    auto found = split.map.find(path->substr(0, call));
    if (found != split.map.end()) return found->second;
  }
  return -1;
}

ModuleAssignment AssignEach(Model& model, const SplitSpec& split) {
  const std::string said =
      split.kind == SplitSpec::kFunction ? "the split callback" : "--split " + split.text;
  for (const auto& [name, module] : split.map) {
    bool used = false;
    for (const Node* node : model.graph->nodes())
      used = used || (node->kind() != torch::jit::prim::Constant && Belongs(node, name));
    if (!used) RefuseName(model, "--split " + split.text, name);
  }
  ModuleAssignment out;
  int highest = 0;
  for (const auto& [name, module] : split.map) highest = std::max(highest, module);
  Regions regions;
  int region = -1;  // module of the region around the node
  const Node* last = nullptr;
  std::map<int, int> unnamed;  // by module: operations that the map does not name
  // For lists and other nodes that are not operations: the last operation that they depend on.
  std::map<const Node*, const Node*> made_of;
  for (const Node* node : model.graph->nodes()) {
    const ErrorContext here(node);
    int wanted = split.kind == SplitSpec::kMap ? Mapped(split, node) : split.function(node);
    if (wanted < -1 || wanted > 100000)
      throw Error(said, "gives module " + std::to_string(wanted) + " to " + Origin(node));
    // A constant may be used before the module whose scope it has; localize copies it to others.
    if (node->kind() == torch::jit::prim::Constant) wanted = 0;
    // Nodes that are not named go with the last of their inputs.
    int earliest = 0;
    const Node* producer = nullptr;
    for (Node* inner : WithInner(const_cast<Node*>(node)))
      for (const auto* input : inner->inputs()) {
        const Node* from = input->node();
        if (auto list = made_of.find(from); list != made_of.end()) from = list->second;
        auto found = out.module_of.find(from);
        if (found == out.module_of.end() || !IsOperation(from)) continue;
        if (found->second >= earliest) earliest = found->second, producer = from;
      }
    if (!IsOperation(node) && producer) made_of[node] = producer;
    bool before = regions.inside;
    regions.Pass(node);
    bool opens = !before && regions.inside;
    if (wanted < 0) {
      wanted = before ? region : earliest;
      if (IsOperation(node)) ++unnamed[std::max(wanted, earliest)];
    }
    if (opens) region = wanted;
    if (before && wanted != region && IsOperation(node))
      RefuseRegion(model, "of " + said, node, last, regions);
    if (IsOperation(node)) last = node;
    if (wanted < earliest && IsOperation(node))
      throw Error(said,
                  Origin(node) + " is in module " + std::to_string(wanted) +
                      " but uses a value of " + Origin(producer) + " in module " +
                      std::to_string(earliest),
                  "modules run in the order of their numbers: give it " + std::to_string(earliest) +
                      " or more");
    out.module_of[node] = std::max(wanted, earliest);
    highest = std::max(highest, wanted);
  }
  out.modules = highest + 1;
  for (int m = 0; m <= highest; ++m) {
    std::vector<std::string> names;
    for (const auto& [name, module] : split.map)
      if (module == m) names.push_back(name);
    out.reasons.push_back("placed by " + said + (names.empty() ? "" : ": " + Join(names, ", ")));
    if (unnamed.count(m))
      out.notes.emplace_back(m, "operations outside the submodules that it names: " +
                                    std::to_string(unnamed[m]) +
                                    ", each placed with the last of its inputs");
  }
  SortByModule(model, out);
  return out;
}

}  // namespace

ModuleAssignment AssignModules(Model& model, const SplitSpec& split) {
  RemoveMarkers(model, split.kind == SplitSpec::kMarkers);
  return split.kind == SplitSpec::kMap || split.kind == SplitSpec::kFunction
             ? AssignEach(model, split)
             : AssignRuns(model, split);
}

}  // namespace pipewright
