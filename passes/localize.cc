#include "passes/localize.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

bool IsScalar(const Value* value) {
  auto kind = value->type()->kind();
  return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
         kind == c10::TypeKind::BoolType;
}

// Made anew wherever it is used.
bool IsFree(const Node* node) {
  return node->kind() == prim::Constant || node->kind() == prim::ListConstruct;
}

// Arithmetic on numbers alone.
bool IsArithmetic(const Node* node) {
  if (!node->blocks().empty() || node->hasSideEffects() || node->outputs().size() != 1)
    return false;
  if (!IsScalar(node->output())) return false;
  for (const Value* input : node->inputs())
    if (!IsScalar(input)) return false;
  return !node->inputs().empty();
}

class Localizer {
 public:
  Localizer(Model& model, Assignment& assignment) : model_(model), assignment_(assignment) {}

  void Run() {
    std::vector<std::vector<Node*>> nodes(static_cast<size_t>(assignment_.modules));
    for (Node* node : model_.graph->nodes())
      if (!IsFree(node)) nodes[static_cast<size_t>(Module(node))].push_back(node);
    for (module_ = 0; module_ < assignment_.modules; ++module_) {
      made_.clear();
      entering_.clear();
      const auto& own = nodes[static_cast<size_t>(module_)];
      for (Node* node : own)
        VisitInputs(node, [&](Node* user, size_t i) { Collect(user->input(i)); });
      for (Node* node : own) {
        top_ = node;
        VisitInputs(node, [&](Node* user, size_t i) {
          Value* value = Local(user->input(i));
          if (value != user->input(i)) user->replaceInput(i, value);
        });
      }
    }
    // Lists and constants that returned values need belong to the last module.
    module_ = assignment_.modules - 1;
    made_.clear();
    top_ = model_.graph->return_node();
    for (size_t i = 0; i < model_.graph->outputs().size(); ++i)
      if (IsFree(model_.graph->outputs()[i]->node()))
        top_->replaceInput(i, Local(model_.graph->outputs()[i]));
    RemoveUnused();
  }

 private:
  int Module(const Node* node) const {
    auto found = assignment_.module_of.find(node);
    return found == assignment_.module_of.end() ? -1 : found->second;
  }

  // Whether `value` comes from another module, or is an input of the model.
  bool Foreign(const Value* value) const {
    const Node* node = value->node();
    if (node->kind() == prim::Param)
      return node->owningBlock() == model_.graph->block() &&
             value->offset() >= model_.first_input();
    return node->owningBlock() == model_.graph->block() && Module(node) != module_;
  }

  template <class F>
  void VisitInputs(Node* top, const F& visit) {
    std::vector<Node*> nodes = {top};
    while (!nodes.empty()) {
      Node* node = nodes.back();
      nodes.pop_back();
      for (size_t i = 0; i < node->inputs().size(); ++i) visit(node, i);
      for (Block* block : node->blocks()) {
        nodes.push_back(block->return_node());
        for (Node* inner : block->nodes()) nodes.push_back(inner);
      }
    }
  }

  // Tensors that enter the module whatever happens to sizes.
  void Collect(Value* value) {
    std::vector<Value*> values = {value};
    while (!values.empty()) {
      Value* v = values.back();
      values.pop_back();
      if (v->node()->kind() == prim::ListConstruct) {
        for (Value* element : v->node()->inputs()) values.push_back(element);
      } else if (Foreign(v) && v->type()->kind() == c10::TypeKind::TensorType &&
                 std::find(entering_.begin(), entering_.end(), v) == entering_.end()) {
        entering_.push_back(v);
      }
    }
  }

  std::pair<Value*, int64_t> Carrier(const Value* size) const {
    const ValueMeta* wanted = model_.MetaOf(size);
    if (!wanted || wanted->expression.empty()) return {nullptr, 0};
    for (Value* tensor : entering_) {
      const ValueMeta* meta = model_.MetaOf(tensor);
      if (!meta) continue;
      for (size_t d = 0; d < meta->shape.size(); ++d)
        if (meta->shape[d] == wanted->expression) return {tensor, static_cast<int64_t>(d)};
    }
    return {nullptr, 0};
  }

  // Whether `size` can be had without a new crossing.
  bool Recomputable(const Value* size) const {
    std::vector<const Value*> todo = {size};
    std::set<const Value*> seen;
    while (!todo.empty()) {
      const Value* value = todo.back();
      todo.pop_back();
      if (!seen.insert(value).second || !Foreign(value)) continue;
      if (value->node()->kind() == prim::Constant || Carrier(value).first) continue;
      if (value->node()->kind() == prim::Param || !IsArithmetic(value->node())) return false;
      for (const Value* input : value->node()->inputs()) todo.push_back(input);
    }
    return true;
  }

  // `value` as this module has it, made before `top_` where it has to be.
  Value* Local(Value* wanted) {
    std::vector<Value*> todo = {wanted};
    while (!todo.empty()) {
      Value* value = todo.back();
      Node* node = value->node();
      if (made_.count(value)) {
        todo.pop_back();
        continue;
      }
      bool free = node->owningBlock() == model_.graph->block() && IsFree(node);
      if (!free && (!Foreign(value) || !IsScalar(value) || !Recomputable(value))) {
        made_[value] = value;
        todo.pop_back();
        continue;
      }
      torch::jit::WithInsertPoint before(top_);
      if (auto [tensor, dimension] = Carrier(value); !free && tensor) {
        Value* d = Own(model_.graph->insertConstant(dimension));
        Node* size =
            model_.graph->insertNode(model_.graph->create(c10::aten::size, {tensor, d}, 1));
        size->output()->setType(c10::IntType::get());
        made_[value] = Finish(size, node, value);
        todo.pop_back();
        continue;
      }
      bool ready = true;
      for (Value* input : node->inputs())
        if (!made_.count(input)) todo.push_back(input), ready = false;
      if (!ready) continue;
      Node* clone = model_.graph->createClone(node, [&](Value* v) { return made_.at(v); });
      model_.graph->insertNode(clone);
      made_[value] = Finish(clone, node, value);
      todo.pop_back();
    }
    return made_.at(wanted);
  }

  Value* Own(Value* value) {
    assignment_.module_of[value->node()] = module_;
    return value;
  }

  Value* Finish(Node* made, Node* from, const Value* value) {
    made->copyMetadata(from);
    assignment_.module_of[made] = module_;
    if (from->kind() != prim::Constant && value->hasDebugName())
      made->output()->setDebugName(value->debugNameBase() + "_m" + std::to_string(module_));
    if (const ValueMeta* meta = model_.MetaOf(value)) {
      ValueMeta copy = *meta;
      model_.meta[made->output()->debugName()] = copy;
    }
    return made->output();
  }

  void RemoveUnused() {
    for (auto it = model_.graph->nodes().rbegin(); it != model_.graph->nodes().rend();) {
      Node* node = *it++;
      if ((IsFree(node) || IsArithmetic(node)) && !node->hasUses()) {
        assignment_.module_of.erase(node);
        node->destroy();
      }
    }
  }

  Model& model_;
  Assignment& assignment_;
  int module_ = 0;
  Node* top_ = nullptr;
  std::map<const Value*, Value*> made_;
  std::vector<Value*> entering_;
};

}  // namespace

void Localize(Model& model, Assignment& assignment) { Localizer(model, assignment).Run(); }

}  // namespace pipewright
