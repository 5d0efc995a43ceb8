#include "runtime/measure/module_parts.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "ops/region_ops.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

// Nodes that are recreated in every part that uses them.
bool IsFree(const Node* node) {
  return node->kind() == prim::Constant || node->kind() == prim::ListConstruct ||
         node->kind() == prim::GetAttr || node->kind() == prim::TupleConstruct;
}

// Parses the comment above a node's line of code, "# SUBMODULE  FILE:LINE: CODE"; each part is
// optional.
std::string LabelOf(const Node* node,
                    std::map<const torch::jit::Source*, std::vector<std::string>>& known) {
  auto source = node->sourceRange().source();
  if (!source) return "";
  auto [found, fresh] = known.try_emplace(source.get());
  std::vector<std::string>& labels = found->second;  // by line
  if (fresh) {
    std::string label;
    for (const std::string& row : Split(source->text_str().str(), '\n')) {
      size_t begin = row.find_first_not_of(' ');
      if (begin != std::string::npos && begin > 0 && row.compare(begin, 2, "# ") == 0) {
        label = row.substr(begin + 2);
        size_t gap = label.find("  ");
        std::string first = label.substr(0, gap);
        size_t colon = first.find(": ");  // no submodule: "FILE:LINE: CODE"
        label = first.substr(0, colon);
      }
      labels.push_back(label);
    }
  }
  size_t line = source->lineno_for_offset(node->sourceRange().start());
  return line < labels.size() ? labels[line] : "";
}

bool Travels(const Value* value) {
  switch (value->type()->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
      return true;
    default:
      return false;
  }
}

// Visits every value that `top` and its blocks use.
template <class F>
void VisitInputs(const Node* top, const F& visit) {
  std::vector<const Node*> nodes = {top};
  while (!nodes.empty()) {
    const Node* node = nodes.back();
    nodes.pop_back();
    for (const Value* input : node->inputs()) visit(input);
    for (const Block* block : node->blocks()) {
      for (const Node* inner : block->nodes()) nodes.push_back(inner);
      nodes.push_back(block->return_node());
    }
  }
}

class Cutter {
 public:
  Cutter(const LoadedModule& module, const ModuleInfo& info) : module_(module), info_(info) {
    graph_ = torch::jit::toGraphFunction(module.self->type()->getMethod("forward")).graph()->copy();
    torch::jit::Inline(*graph_);
    for (Node* node : graph_->nodes())
      if (!IsFree(node)) nodes_.push_back(node);
    for (Value* output : graph_->outputs())
      if (output->node()->kind() == prim::TupleConstruct)
        for (Value* item : output->node()->inputs()) results_.push_back(item);
      else
        results_.push_back(output);
  }

  ModuleParts Run() {
    FindLastUses();
    std::vector<size_t> cuts = Cuts();
    ModuleParts out;
    for (size_t i = 1; i < graph_->inputs().size(); ++i) Id(graph_->inputs()[i]);
    for (size_t c = 0; c + 1 < cuts.size(); ++c) out.parts.push_back(Part(cuts[c], cuts[c + 1]));
    for (Value* result : results_) {
      if (IsFree(result->node())) return {};  // no part creates it
      out.outputs.push_back(Id(result));
    }
    out.values = static_cast<int>(ids_.size());
    return out;
  }

 private:
  // Finds the position of the last node that uses each value, through lists; results are used at
  // the end.
  void FindLastUses() {
    for (const Value* result : results_) Use(result, nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i)
      VisitInputs(nodes_[i], [&](const Value* input) { Use(input, i); });
  }
  void Use(const Value* value, size_t at) {
    std::vector<const Value*> values = {value};
    while (!values.empty()) {
      const Value* used = values.back();
      values.pop_back();
      size_t& last = last_use_[used];
      last = std::max(last, at);
      if (IsFree(used->node()))
        for (const Value* input : used->node()->inputs()) values.push_back(input);
    }
  }

  // Returns the positions where parts begin, and the end.
  std::vector<size_t> Cuts() {
    size_t n = nodes_.size();
    std::vector<char> allowed(n + 1, 0);
    std::map<const torch::jit::Source*, std::vector<std::string>> known;
    bool no_grad = false;  // a region without gradients
    int switched = 0;      // inside regions of ops/region_ops.h
    for (size_t i = 0; i < n; ++i) {
      labels_.push_back(LabelOf(nodes_[i], known));
      allowed[i] = i > 0 && !no_grad && switched == 0 && labels_[i] != labels_[i - 1];
      if (nodes_[i]->kind() == c10::Symbol::aten("set_grad_enabled"))
        no_grad = !torch::jit::constant_as<bool>(nodes_[i]->input(0)).value_or(true);
      switched += RegionStep(nodes_[i], "vmap") + RegionStep(nodes_[i], "autocast");
    }
    torch::jit::AliasDb aliases(graph_);
    for (size_t i = 0; i < n; ++i)
      for (Value* output : nodes_[i]->outputs()) {
        auto last = last_use_.find(output);
        if (last == last_use_.end() || last->second <= i) continue;
        size_t end = std::min(last->second, n - 1);
        if (!Travels(output))
          for (size_t c = i + 1; c <= end; ++c) allowed[c] = 0;
      }
    for (size_t writer = 0; writer < n; ++writer) {
      if (!aliases.isMutable(nodes_[writer])) continue;
      for (size_t i = 0; i < writer; ++i) {
        torch::jit::ValueSet outputs(nodes_[i]->outputs().begin(), nodes_[i]->outputs().end());
        if (!aliases.writesToAlias(nodes_[writer], outputs)) continue;
        for (size_t c = i + 1; c <= writer; ++c) allowed[c] = 0;
      }
    }
    std::vector<size_t> cuts = {0};
    for (size_t i = 1; i < n; ++i)
      if (allowed[i]) cuts.push_back(i);
    cuts.push_back(n);
    return cuts;
  }

  int Id(const Value* value) {
    return ids_.emplace(value, static_cast<int>(ids_.size())).first->second;
  }

  // Returns the value of the part's graph that corresponds to `outer`.
  Value* Inner(Value* outer) {
    if (auto found = env_.find(outer); found != env_.end()) return found->second;
    if (IsFree(outer->node())) {
      if (outer->node()->kind() == prim::GetAttr) names_.insert(outer->node()->s(c10::attr::name));
      Node* copy = part_->createClone(outer->node(), [&](Value* v) { return Inner(v); });
      part_->insertNode(copy);
      return env_[outer] = copy->output();
    }
    Value* input = part_->addInput();
    input->setType(outer->type());
    inputs_.push_back(Id(outer));
    return env_[outer] = input;
  }

  ModulePart Part(size_t begin, size_t end) {
    part_ = std::make_shared<Graph>();
    env_.clear(), names_.clear(), inputs_.clear();
    Value* self = part_->addInput("self");
    self->setType(graph_->inputs()[0]->type());
    env_[graph_->inputs()[0]] = self;
    for (size_t i = begin; i < end; ++i) {
      Node* copy = part_->createClone(nodes_[i], [&](Value* v) { return Inner(v); });
      part_->insertNode(copy);
      for (size_t o = 0; o < nodes_[i]->outputs().size(); ++o)
        env_[nodes_[i]->outputs()[o]] = copy->outputs()[o];
    }
    ModulePart part;
    for (size_t i = begin; i < end; ++i)
      for (Value* output : nodes_[i]->outputs())
        if (auto last = last_use_.find(output); last != last_use_.end() && last->second >= end) {
          part_->registerOutput(env_.at(output));
          part.outputs.push_back(Id(output));
        }
    part.label = begin < labels_.size() ? labels_[begin] : "";
    part.inputs = inputs_;
    part.module.index = module_.index;
    part.module.self = module_.self;
    part.module.unit = module_.unit;
    part.module.code = std::make_unique<torch::jit::Code>(part_, info_.name);
    for (size_t w = 0; w < info_.held.size(); ++w)
      if (names_.count(info_.held[w].name)) {
        part.module.weights.push_back(module_.weights[w]);
        part.held.push_back(w);
      }
    return part;
  }

  const LoadedModule& module_;
  const ModuleInfo& info_;
  std::shared_ptr<Graph> graph_;
  std::vector<Node*> nodes_;  // without the free ones
  std::vector<Value*> results_;
  std::map<const Value*, size_t> last_use_;
  std::map<const Value*, int> ids_;
  std::vector<std::string> labels_;
  // State of the part being built.
  std::shared_ptr<Graph> part_;
  std::map<const Value*, Value*> env_;
  std::set<std::string> names_;
  std::vector<int> inputs_;
};

}  // namespace

ModuleParts CutIntoParts(const LoadedModule& module, const ModuleInfo& info) {
  return Cutter(module, info).Run();
}

}  // namespace pipewright
