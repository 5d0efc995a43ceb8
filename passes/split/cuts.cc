#include "passes/split/cuts.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "ops/region_ops.h"
#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Node;

bool IsOperation(const Node* node) {
  return node->kind() != torch::jit::prim::Constant &&
         node->kind() != torch::jit::prim::Uninitialized &&
         node->kind() != torch::jit::prim::ListConstruct && !IsMarker(node);
}

bool Belongs(const Node* node, const std::string& name) {
  const ErrorContext here(node);
  for (const std::string& path : ModuleStack(node))
    if (path == name || path.rfind(name + ".", 0) == 0) return true;
  return false;
}

void Regions::Pass(const Node* node) {
  const ErrorContext here(node);
  if (node->kind() == c10::Symbol::aten("set_grad_enabled"))
    no_grad_ = !torch::jit::constant_as<bool>(node->input(0)).value_or(true);
  vmaps_ += RegionStep(node, "vmap");
  autocasts_ += RegionStep(node, "autocast");
  inside = no_grad_ || vmaps_ > 0 || autocasts_ > 0;
}

std::string Regions::name() const {
  return vmaps_ > 0       ? "torch.vmap"
         : autocasts_ > 0 ? "a recurrent layer inside torch.autocast"
                          : "a torch.no_grad() region";
}

namespace {

// Suggests submodules whose path ends like `name`: "model.layers.2" for "layers.2", or "h.2".
std::string SuggestPath(const std::string& name, const std::vector<std::string>& all) {
  const std::string close = Suggest(name, all);
  if (!close.empty()) return close;
  for (std::string end = name;; end = end.substr(end.find('.') + 1)) {
    std::vector<std::string> found;
    for (const std::string& path : all)
      if (path == end || path.ends_with("." + end)) found.push_back("\"" + path + "\"");
    constexpr size_t kShown = 3;
    if (found.size() > kShown) found.resize(kShown);
    if (!found.empty()) return " (did you mean " + Join(found, " or ") + "?)";
    if (end.find('.') == std::string::npos) return "";
  }
}

}  // namespace

std::string NameContainer(const std::vector<std::string>& submodules) {
  std::map<std::string, int> children;
  for (const std::string& path : submodules)
    if (const size_t dot = path.rfind('.'); dot != std::string::npos)
      ++children[path.substr(0, dot)];
  std::vector<std::pair<int, std::string>> most;
  for (const auto& [path, count] : children)
    if (count > 1) most.push_back({-count, path});
  std::sort(most.begin(), most.end());
  constexpr size_t kShown = 5;
  if (most.size() > kShown) most.resize(kShown);
  std::vector<std::string> names;
  for (const auto& [count, path] : most)
    names.push_back(path + " (" + std::to_string(-count) + " children)");
  return "name a container, such as a Sequential or a ModuleList" +
         (names.empty() ? "" : ": " + Join(names, ", "));
}

void RefuseName(const Model& model, const std::string& option, const std::string& name) {
  for (Node* node : AllNodes(*model.graph)) {
    if (node->owningBlock() == model.graph->block() || !Belongs(node, name)) continue;
    while (node->owningBlock() != model.graph->block()) node = node->owningBlock()->owningNode();
    throw Error(option,
                "submodule \"" + name + "\" lies inside a " +
                    (node->kind() == torch::jit::prim::Loop ? "loop" : "branch") + " (" +
                    Origin(node) +
                    ") that is decided while the model runs, which one module keeps whole",
                "cut before or after it");
  }
  const std::vector<std::string>& all = model.submodules;
  if (std::find(all.begin(), all.end(), name) != all.end())
    throw Error(option, "submodule \"" + name + "\" has no operations in the model",
                "name the submodule that follows it");
  const std::string called = name.substr(0, name.find('@'));
  if (called != name && std::find(all.begin(), all.end(), called) != all.end()) {
    int calls = 0;
    for (const Node* node : model.graph->nodes())
      for (const std::string& path : ModuleStack(node))
        if (path == called || path.rfind(called + "@", 0) == 0)
          calls = std::max(calls, path == called ? 1 : 1 + std::atoi(&path[called.size() + 1]));
    if (calls == 0) RefuseName(model, option, called);
    throw Error(option,
                "submodule \"" + called + "\" is called " +
                    (calls == 1 ? "once" : std::to_string(calls) + " times"),
                calls < 2 ? "name it " + called
                          : "its calls are " + called + " and " + called + "@1" +
                                (calls > 2 ? " to @" + std::to_string(calls - 1) : ""));
  }
  size_t shown = std::min<size_t>(20, all.size());
  throw Error(option, "there is no submodule \"" + name + "\"" + SuggestPath(name, all),
              "submodules: " + Join({all.begin(), all.begin() + static_cast<long>(shown)}, ", ") +
                  (all.size() > shown ? ", ..." : ""));
}

Cuts CutsAtNames(const Model& model, const SplitSpec& split) {
  Cuts cuts;
  for (const std::string& name : split.before) {
    const Node* first = nullptr;
    for (const Node* node : model.graph->nodes())
      if (node->kind() != torch::jit::prim::Constant && Belongs(node, name)) {
        first = node;
        break;
      }
    if (!first) RefuseName(model, "--split modules:" + name, name);
    cuts[first] = "before " + name;
  }
  for (const std::string& name : split.after) {
    const Node* last = nullptr;
    for (const Node* node : model.graph->nodes())
      if (IsOperation(node) && Belongs(node, name)) last = node;
    if (!last) RefuseName(model, "--split-after " + name, name);
    cuts[last->next()] = "after " + name;
  }
  return cuts;
}

Cuts CutsAtChildren(const Model& model, const SplitSpec& split) {
  const std::string prefix = split.path.empty() ? "" : split.path + ".";
  // Returns the direct child that the operation belongs to; a container itself is never called.
  auto child_of = [&](const Node* node) {
    for (const std::string& path : ModuleStack(node))
      if (path.size() > prefix.size() && path.rfind(prefix, 0) == 0)
        return path.substr(0, path.find('.', prefix.size()));
    return std::string();
  };
  Cuts cuts;
  std::string current;
  for (const Node* node : model.graph->nodes()) {
    const ErrorContext here(node);
    if (!IsOperation(node)) continue;
    const std::string child = child_of(node);
    if (child.empty() || child == current) continue;
    if (!current.empty())
      cuts[node] = "a child of " + (split.path.empty() ? "the model" : split.path);
    current = child;
  }
  if (current.empty()) {
    const std::vector<std::string>& all = model.submodules;
    bool known = std::find(all.begin(), all.end(), split.path) != all.end();
    if (!known && !split.path.empty()) RefuseName(model, "--split " + split.text, split.path);
    throw Error("--split " + split.text, "it has no children with operations", NameContainer(all));
  }
  return cuts;
}

Cuts CutsBetweenSubmodules(const Model& model, const SplitSpec& split) {
  Cuts cuts;
  const auto uncuttable = Uncuttable(model);
  std::string last;
  bool any = false, changed = false;  // changed: the submodule, since the last cut
  int number = 0;
  for (const Node* node : model.graph->nodes()) {
    const ErrorContext here(node);
    if (!IsOperation(node)) continue;
    // Nested calls count: a ModuleList is never called, whatever names are below it.
    std::vector<std::string> stack = ModuleStack(node);
    if (split.depth > 0 && stack.size() > static_cast<size_t>(split.depth))
      stack.resize(static_cast<size_t>(split.depth));
    const std::string path = stack.empty() ? "" : stack.back();
    changed = any && (changed || path != last);
    if (changed && !uncuttable.count(node)) {
      changed = false;
      ++number;
      if (split.keep_all || std::binary_search(split.keep.begin(), split.keep.end(), number))
        cuts[node] = "best by measured time";
    }
    last = path;
    any = true;
  }
  return cuts;
}

}  // namespace pipewright
