#include "passes/restore_training.h"

#include <torch/csrc/jit/ir/constants.h>

#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

static bool IsNone(const Value* value) {
  return value->node()->kind() == torch::jit::prim::Constant &&
         torch::jit::toIValue(value)->isNone();
}

// Returns true for batch and instance norms without running statistics, which use those of the
// batch in either mode.
static bool AlwaysTraining(const Node* node, const c10::FunctionSchema& schema) {
  auto mean = schema.argumentIndexWithName("running_mean");
  if (!mean) return schema.overload_name() == "no_stats";
  return IsNone(node->inputs()[*mean]);
}

static bool CountsBatches(const Model& model, const Node* node) {
  if (node->kind() != c10::aten::add_) return false;
  for (size_t i = 0; i < model.weights.size(); ++i) {
    if (model.weight_input(i) != node->input(0)) continue;
    const std::string& name = model.weights[i].names[0];
    return model.weights[i].kind == WeightKind::kBuffer && name.ends_with("num_batches_tracked");
  }
  return false;
}

void RestoreTraining(Model& model) {
  // Scripted models read the flag themselves.
  bool on = model.training()->hasUses(), off = false;
  for (Node* node : AllNodes(*model.graph)) {
    const ErrorContext here(node);
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (!schema) continue;
    for (const char* name : {"train", "training", "use_input_stats"}) {
      auto index = schema->argumentIndexWithName(name);
      if (!index) continue;
      auto flag = torch::jit::constant_as<bool>(node->inputs()[*index]);
      if (!flag || AlwaysTraining(node, *schema)) continue;
      (*flag ? on : off) = true;
      if (*flag) node->replaceInput(*index, model.training());
    }
    auto p = schema->argumentIndexWithName("dropout_p");
    if (p && torch::jit::constant_as<double>(node->inputs()[*p]).value_or(0) > 0) on = true;
  }
  model.in_training = on || !off;
  if (!on) return;
  for (Node* node : AllNodes(*model.graph)) {
    const ErrorContext here(node);
    if (!CountsBatches(model, node)) continue;
    if (torch::jit::constant_as<int64_t>(node->input(1)).value_or(0) != 1) continue;
    torch::jit::WithInsertPoint before(node);
    Node* count = model.graph->insertNode(
        model.graph->create(c10::Symbol::aten("Int"), {model.training()}, 1));
    count->output()->setType(c10::IntType::get());
    count->copyMetadata(node);
    node->replaceInput(1, count->output());
  }
}

}  // namespace pipewright
