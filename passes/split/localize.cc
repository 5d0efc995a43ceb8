#include "passes/split/localize.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>

#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

bool IsScalar(const Value* value) {
  auto kind = value->type()->kind();
  return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
         kind == c10::TypeKind::BoolType;
}

// Returns true for arithmetic on numbers only.
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
  Localizer(Model& model, ModuleAssignment& assignment) : model_(model), assignment_(assignment) {}

  void Run() {
    FindChangedLists();
    std::vector<std::vector<Node*>> nodes(static_cast<size_t>(assignment_.modules));
    for (Node* node : model_.graph->nodes())
      if (!IsFree(node)) nodes[static_cast<size_t>(Module(node))].push_back(node);
    for (module_ = 0; module_ < assignment_.modules; ++module_) {
      made_.clear();
      entering_.clear();
      const auto& own = nodes[static_cast<size_t>(module_)];
      for (Node* top : own)
        for (Node* user : WithInner(top))
          for (Value* input : user->inputs()) Collect(input);
      // A list that is appended to may be made before the values that enter.
      const auto first =
          std::find_if(own.begin(), own.end(), [&](Node* node) { return !changed_.count(node); });
      first_ = first == own.end() ? nullptr : *first;
      for (Node* top : own) {
        const ErrorContext here(top);
        top_ = top;
        for (Node* user : WithInner(top))
          for (size_t i = 0; i < user->inputs().size(); ++i) {
            Value* value = Local(user->input(i));
            if (value != user->input(i)) user->replaceInput(i, value);
          }
      }
    }
    // Lists and constants needed by returned values belong to the last module.
    module_ = assignment_.modules - 1;
    made_.clear();
    top_ = first_ = model_.graph->return_node();
    for (size_t i = 0; i < model_.graph->outputs().size(); ++i)
      if (Value* output = model_.graph->outputs()[i]; IsFree(output->node())) {
        Value* made = Local(output);
        top_->replaceInput(i, made);
        if (output == made || output->node()->kind() != prim::Constant) continue;
        if (!output->hasDebugName() || made->hasDebugName()) continue;
        const std::string name = output->debugName();  // a constant that the model returns
        output->setDebugName("");
        made->setDebugName(name);
      }
    RemoveUnused();
  }

 private:
  // Returns true for nodes that are recreated at each use: constants, placeholders of values that a
  // branch does not set, lists, views of weights.
  bool IsFree(const Node* node) const {
    if (changed_.count(node)) return false;
    return node->kind() == prim::Constant || node->kind() == prim::Uninitialized ||
           node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct ||
           node->kind() == prim::DictConstruct || IsWeightView(node);
  }

  // Matches the import's form of a weight that is a view of another: as_strided(detach(weight)).
  bool IsWeightView(const Node* node) const {
    if (node->kind() == c10::aten::as_strided) node = node->inputs()[0]->node();
    if (node->kind() != c10::aten::detach) return false;
    const Value* weight = node->inputs()[0];
    return weight->node() == model_.graph->param_node() && weight->offset() < model_.weights.size();
  }

  // A list that is appended to is one object, which belongs to the module that first uses it.
  void FindChangedLists() {
    auto is_list = [](const Node* node) {
      return node->kind() == prim::ListConstruct || node->kind() == prim::DictConstruct;
    };
    bool elsewhere = false;  // a change through a branch or a loop
    for (Node* node : AllNodes(*model_.graph)) {
      const c10::FunctionSchema* schema = node->maybeSchema();
      if (!schema || !schema->is_mutable()) continue;
      for (size_t i = 0; i < node->inputs().size() && i < schema->arguments().size(); ++i) {
        auto kind = node->inputs()[i]->type()->kind();
        if (!schema->is_mutable({c10::SchemaArgType::input, i}) ||
            (kind != c10::TypeKind::ListType && kind != c10::TypeKind::DictType))
          continue;
        if (is_list(node->inputs()[i]->node()))
          changed_.insert(node->inputs()[i]->node());
        else
          elsewhere = true;
      }
    }
    for (Node* node : model_.graph->nodes()) {
      if (!is_list(node)) continue;
      Node* first = nullptr;
      for (const auto& use : node->output()->uses()) {
        Node* user = use.user;
        bool inside = user->kind() == prim::Loop || user->owningBlock() != model_.graph->block();
        if (inside && elsewhere) changed_.insert(node);
        while (user->owningBlock() != model_.graph->block())
          user = user->owningBlock()->owningNode();
        if (user != model_.graph->return_node() && (!first || user->isBefore(first))) first = user;
      }
      if (changed_.count(node) && first) assignment_.module_of[node] = Module(first);
    }
  }

  int Module(const Node* node) const {
    auto found = assignment_.module_of.find(node);
    return found == assignment_.module_of.end() ? -1 : found->second;
  }

  // Returns true if `value` comes from another module or is an input of the model.
  bool Foreign(const Value* value) const {
    const Node* node = value->node();
    if (node->kind() == prim::Param)
      return node->owningBlock() == model_.graph->block() &&
             value->offset() >= model_.first_input();
    return node->owningBlock() == model_.graph->block() && Module(node) != module_;
  }

  // Collects the tensors that enter the module in any case, regardless of sizes.
  void Collect(Value* value) {
    std::vector<Value*> values = {value};
    while (!values.empty()) {
      Value* v = values.back();
      values.pop_back();
      if (v->node()->kind() != prim::Param && IsFree(v->node())) {
        for (Value* element : v->node()->inputs()) values.push_back(element);
      } else if (Foreign(v) && v->type()->kind() == c10::TypeKind::TensorType &&
                 std::find(entering_.begin(), entering_.end(), v) == entering_.end()) {
        entering_.push_back(v);
      }
    }
  }

  // Returns a tensor that enters anyway, and its dimension that equals `size`.
  std::pair<Value*, int64_t> Carrier(const Value* size) const {
    const Node* node = size->node();
    if (node->kind() == c10::aten::size && node->inputs().size() == 2) {
      auto dimension = torch::jit::constant_as<int64_t>(node->inputs()[1]);
      auto at = std::find(entering_.begin(), entering_.end(), node->inputs()[0]);
      if (dimension && at != entering_.end()) return {*at, *dimension};
    }
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

  // Returns true if `size` is available without a new crossing value.
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

  // Returns this module's version of `value`, created before `top_` if needed, or if it is a size
  // of a tensor that enters, before `first_`.
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
        // Later, the module may have changed its shape in place.
        torch::jit::WithInsertPoint begin(first_ && first_->isBefore(top_) ? first_ : top_);
        Value* d = Own(model_.graph->insertConstant(dimension));
        Node* size =
            model_.graph->insertNode(model_.graph->create(c10::aten::size, {tensor, d}, 1));
        size->output()->setType(c10::IntType::get());
        made_[value] = Finish(size, node, value);
        assignment_.notes.emplace_back(
            module_, "reads the size " + value->debugName() + " off " + tensor->debugName());
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
  ModuleAssignment& assignment_;
  std::set<const Node*> changed_;
  int module_ = 0;
  Node *first_ = nullptr, *top_ = nullptr;  // the module's first node, and the current one
  std::map<const Value*, Value*> made_;
  std::vector<Value*> entering_;
};

}  // namespace

void Localize(Model& model, ModuleAssignment& assignment) { Localizer(model, assignment).Run(); }

}  // namespace pipewright
