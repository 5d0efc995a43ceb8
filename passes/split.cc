#include "passes/split.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

static const c10::Symbol kMarker = c10::Symbol::fromQualString("pippy::_pipe_split");

SplitSpec ParseSplit(const std::string& text) {
  SplitSpec spec;
  size_t colon = text.find(':');
  std::string kind = text.substr(0, colon);
  std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (kind == "markers" && colon == std::string::npos) return spec;
  if (kind == "equal") {
    char* end = nullptr;
    long count = std::strtol(rest.c_str(), &end, 10);
    if (rest.empty() || *end || count < 1 || count > 100000)
      throw UsageError("--split " + text, "wants a number of modules, as in equal:4");
    spec.kind = SplitSpec::kEqual;
    spec.count = static_cast<int>(count);
    return spec;
  }
  if (kind == "modules") {
    spec.kind = SplitSpec::kModules;
    spec.names = Split(rest, ',');
    for (const std::string& name : spec.names)
      if (name.empty())
        throw UsageError("--split " + text, "wants names, as in modules:blocks.2,blocks.4");
    return spec;
  }
  throw UsageError("--split " + text, "is none of markers, equal:N, modules:NAME,NAME,...");
}

namespace {

// Runs on the top level between set_grad_enabled(false) and (true).
struct GradRegions {
  bool inside = false;
  void Pass(const Node* node) {
    if (node->kind() != c10::Symbol::aten("set_grad_enabled")) return;
    inside = !torch::jit::constant_as<bool>(node->input(0)).value_or(true);
  }
};

bool Belongs(const Node* node, const std::string& name) {
  for (const std::string& path : ModuleStack(node))
    if (path == name || path.rfind(name + ".", 0) == 0) return true;
  return false;
}

std::set<const Node*> CutsBeforeModules(Model& model, const std::vector<std::string>& names) {
  std::set<const Node*> cuts;
  for (const std::string& name : names) {
    const Node* first = nullptr;
    for (const Node* node : model.graph->nodes()) {
      if (node->kind() == torch::jit::prim::Constant || !Belongs(node, name)) continue;
      first = node;
      break;
    }
    if (!first) {
      bool known = std::find(model.submodules.begin(), model.submodules.end(), name) !=
                   model.submodules.end();
      throw Error(
          "--split modules:" + name,
          known ? "this submodule has no operations in the exported program"
                : "there is no such submodule" + Suggest(name, model.submodules),
          known
              ? "name the submodule that follows it"
              : "submodules: " +
                    Join({model.submodules.begin(),
                          model.submodules.begin() + std::min<size_t>(20, model.submodules.size())},
                         ", ") +
                    (model.submodules.size() > 20 ? ", ..." : ""));
    }
    cuts.insert(first);
  }
  return cuts;
}

bool IsOperation(const Node* node) {
  return node->kind() != torch::jit::prim::Constant &&
         node->kind() != torch::jit::prim::ListConstruct && node->kind() != kMarker;
}

std::set<const Node*> EqualCuts(Model& model, int count) {
  std::vector<const Node*> nodes;  // operations that may be cut before
  std::vector<bool> allowed;
  std::unordered_map<const Node*, size_t> position;
  GradRegions regions;
  for (const Node* node : model.graph->nodes()) {
    bool inside = regions.inside;
    regions.Pass(node);
    if (!IsOperation(node)) continue;
    position[node] = nodes.size();
    nodes.push_back(node);
    allowed.push_back(!inside && node->kind() != torch::jit::prim::ListUnpack);
  }
  if (static_cast<size_t>(count) > nodes.size())
    throw Error("--split equal:" + std::to_string(count),
                "the model has only " + std::to_string(nodes.size()) + " operations");
  // Tensors alive across the place before each node.
  std::vector<int> crossing(nodes.size() + 1, 0);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Value* output : nodes[i]->outputs()) {
      if (output->type()->kind() != c10::TypeKind::TensorType) continue;
      size_t last = i;
      std::vector<const Value*> reaching = {output};
      while (!reaching.empty()) {  // through lists
        const Value* value = reaching.back();
        reaching.pop_back();
        for (const auto& use : value->uses()) {
          if (use.user->kind() == torch::jit::prim::ListConstruct)
            reaching.push_back(use.user->output());
          else if (auto at = position.find(use.user); at != position.end())
            last = std::max(last, at->second);
        }
      }
      if (last > i) ++crossing[i + 1], --crossing[std::min(last + 1, nodes.size())];
    }
  }
  for (size_t i = 1; i < crossing.size(); ++i) crossing[i] += crossing[i - 1];
  std::set<const Node*> cuts;
  size_t after = 0;  // the last cut
  for (int k = 1; k < count; ++k) {
    size_t ideal = nodes.size() * static_cast<size_t>(k) / static_cast<size_t>(count);
    size_t reach = std::max<size_t>(1, nodes.size() / static_cast<size_t>(count) / 2);
    size_t best = 0;
    auto cost = [&](size_t i) { return std::pair(crossing[i], i > ideal ? i - ideal : ideal - i); };
    auto look = [&](size_t first, size_t last) {
      for (size_t i = std::max(after + 1, first); i < nodes.size() && i <= last; ++i)
        if (allowed[i] && (best == 0 || cost(i) < cost(best))) best = i;
    };
    look(ideal - std::min(ideal, reach), ideal + reach);
    if (best == 0) look(1, nodes.size());  // all of these lie in regions
    if (best == 0)
      throw Error("--split equal:" + std::to_string(count),
                  "there are not enough places to cut; try fewer modules");
    after = best;
    cuts.insert(nodes[best]);
  }
  return cuts;
}

}  // namespace

Assignment AssignModules(Model& model, const SplitSpec& split) {
  std::set<const Node*> cuts;
  if (split.kind == SplitSpec::kEqual) cuts = EqualCuts(model, split.count);
  if (split.kind == SplitSpec::kModules) cuts = CutsBeforeModules(model, split.names);
  Assignment out;
  GradRegions regions;
  int module = 0;
  bool any = false;  // whether the module has an operation
  for (auto it = model.graph->nodes().begin(); it != model.graph->nodes().end();) {
    Node* node = *it++;
    bool cut = cuts.count(node);
    if (node->kind() == kMarker) {
      cut = split.kind == SplitSpec::kMarkers;
    }
    if (cut && regions.inside)
      throw Error(model.file + ": cut before " + Origin(node),
                  "lies inside a torch.no_grad() region",
                  "move the marker out of the region, or cut at another submodule");
    if (cut && any) ++module, any = false;
    if (node->kind() == kMarker) {
      node->destroy();
      continue;
    }
    regions.Pass(node);
    any = any || IsOperation(node);
    out.module_of[node] = module;
  }
  if (!any && module > 0) {  // a marker at the end
    --module;
    for (auto& entry : out.module_of) entry.second = std::min(entry.second, module);
  }
  out.modules = module + 1;
  return out;
}

}  // namespace pipewright
