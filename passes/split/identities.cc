#include "passes/split/identities.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;

namespace {

std::optional<c10::IValue> ConstantOf(Node* node, const char* argument) {
  const Value* value = InputOf(node, argument);
  return value ? torch::jit::toIValue(value) : std::nullopt;
}

bool HasDtype(const Model& model, const Value* value, at::ScalarType dtype) {
  const ValueMeta* meta = model.MetaOf(value);
  return meta && !meta->cast && meta->dtype == dtype;
}

// Returns true for flatten of a single dimension, and for atleast_Nd of N dimensions or more.
bool KeepsItsShape(const Model& model, Node* node, const std::string& name) {
  static const std::map<std::string, size_t> kAtLeast = {
      {"aten::atleast_1d", 1}, {"aten::atleast_2d", 2}, {"aten::atleast_3d", 3}};
  const ValueMeta* meta = node->inputs().empty() ? nullptr : model.MetaOf(node->input(0));
  if (!meta) return false;
  const auto rank = static_cast<int64_t>(meta->shape.size());
  if (auto found = kAtLeast.find(name); found != kAtLeast.end())
    return node->output()->type()->isSubtypeOf(*c10::TensorType::get()) &&
           meta->shape.size() >= found->second;
  if (name != "aten::flatten" || rank == 0) return false;
  const auto start = ConstantOf(node, "start_dim"), end = ConstantOf(node, "end_dim");
  if (!start || !start->isInt() || !end || !end->isInt()) return false;
  auto dimension = [&](int64_t d) { return d < 0 ? d + rank : d; };
  return dimension(start->toInt()) == dimension(end->toInt());
}

bool ReturnsItsOperand(const Model& model, Node* node) {
  static const std::set<std::string> kDropouts = {"aten::dropout", "aten::feature_dropout",
                                                  "aten::alpha_dropout",
                                                  "aten::feature_alpha_dropout"};
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (!schema) return false;
  if (kDropouts.count(schema->name())) {
    const auto p = ConstantOf(node, "p"), train = ConstantOf(node, "train");
    return (p && p->isDouble() && p->toDouble() == 0) ||
           (train && train->isBool() && !train->toBool());
  }
  if (KeepsItsShape(model, node, schema->name())) return true;
  if (schema->name() != "aten::to" || schema->overload_name() != "dtype") return false;
  const auto dtype = ConstantOf(node, "dtype"), copy = ConstantOf(node, "copy"),
             format = ConstantOf(node, "memory_format");
  return dtype && dtype->isInt() && copy && copy->isBool() && !copy->toBool() && format &&
         format->isNone() &&
         HasDtype(model, node->input(0), static_cast<at::ScalarType>(dtype->toInt()));
}

// Lets the model return the operand under the name of the result.
void ReturnOperand(Model& model, Value* operand, Value* result) {
  Node* outputs = model.graph->return_node();
  auto among = [&](const Value* value) {
    return std::count(outputs->inputs().begin(), outputs->inputs().end(), value) > 0;
  };
  if (!among(result) || among(operand)) return;
  for (size_t i = 0; i < outputs->inputs().size(); ++i)
    if (outputs->input(i) == result) outputs->replaceInput(i, operand);
  const std::string name = result->debugName(), other = operand->debugName();
  operand->setDebugName(name);
  result->setDebugName(other);
}

}  // namespace

void UseOperands(Model& model, ModuleAssignment& assignment) {
  auto module_of = [&](Node* node) {
    while (node->owningBlock() != model.graph->block()) node = node->owningBlock()->owningNode();
    auto found = assignment.module_of.find(node);
    return found == assignment.module_of.end() ? -1 : found->second;
  };
  // A weight would become one that several modules hold, and an input has no gradient.
  auto replaceable = [&](Node* node) {
    return ReturnsItsOperand(model, node) && node->input(0)->node() != model.graph->param_node();
  };
  for (auto it = model.graph->nodes().begin(); it != model.graph->nodes().end();) {
    Node* node = *it++;
    const ErrorContext here(node);
    if (!replaceable(node)) continue;
    Value* operand = node->input(0);
    while (replaceable(operand->node())) operand = operand->node()->input(0);
    if (module_of(operand->node()) != module_of(node))
      ReturnOperand(model, operand, node->output());
    const std::vector<Use> uses = node->output()->uses();
    for (const Use& use : uses)
      // A list belongs to the modules that use it, so its own place says nothing.
      if (use.user != model.graph->return_node() &&
          (use.user->kind() == torch::jit::prim::ListConstruct ||
           module_of(use.user) != module_of(node)))
        use.user->replaceInput(use.offset, operand);
    if (uses.empty() || node->hasUses()) continue;
    assignment.module_of.erase(node);
    node->destroy();
  }
}

}  // namespace pipewright
