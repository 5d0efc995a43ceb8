#include "ops/statistics.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/library.h>

#include <string_view>

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

static bool IsNorm(const Node* node) {
  return node->kind() == c10::aten::batch_norm || node->kind() == c10::aten::instance_norm;
}

// Indices for both norms: (input, weight, bias, running_mean, running_var, training, momentum,
// ...).
constexpr size_t kTraining = 5, kMomentum = 6;

// Returns true unless the flag is constant false, as in a model exported in evaluation mode.
static bool MayTrain(const Node* norm) {
  return torch::jit::constant_as<bool>(norm->input(kTraining)).value_or(true);
}

bool WritesStatistics(const Node* node) { return IsNorm(node) && MayTrain(node); }

bool IsNormInEvaluation(const Node* node) {
  const std::string_view name = node->kind().toQualString();
  return (name == "aten::native_batch_norm" || name == "aten::_batch_norm_impl_index") &&
         !MayTrain(node);
}

std::optional<double> KeptPart(const std::vector<const Value*>& uses) {
  double kept = 1;
  for (const Value* value : uses)
    for (const torch::jit::Use& use : value->uses()) {
      const bool once = use.user->owningBlock() == use.user->owningGraph()->block();
      if (!IsNorm(use.user) || !once) return std::nullopt;
      if (use.offset != kRunningMean && use.offset != kRunningVariance) return std::nullopt;
      if (!MayTrain(use.user)) continue;
      auto momentum = torch::jit::constant_as<double>(use.user->input(kMomentum));
      if (!momentum) return std::nullopt;
      kept *= 1 - *momentum;
    }
  return kept < 1 ? std::optional<double>(kept) : std::nullopt;
}

static void CheckBlock(torch::jit::Block* block, std::vector<torch::jit::Block*>& left) {
  for (Node* node : block->nodes()) {
    left.insert(left.end(), node->blocks().begin(), node->blocks().end());
    if (!IsNorm(node)) continue;
    torch::jit::Graph& graph = *node->owningGraph();
    torch::jit::WithInsertPoint before(node);
    Value* instance = graph.insertConstant(node->kind() == c10::aten::instance_norm);
    Node* check =
        graph.insertNode(graph.create(c10::Symbol::fromQualString("pipewright::check_statistics"),
                                      {node->input(0), node->input(kTraining), instance}, 0));
    check->setSourceRange(node->sourceRange());
    check->setScope(node->scope());
  }
}

void CheckStatistics(torch::jit::Graph& graph) {
  std::vector<torch::jit::Block*> left{graph.block()};
  while (!left.empty()) {
    torch::jit::Block* block = left.back();
    left.pop_back();
    CheckBlock(block, left);
  }
}

static void Check(const at::Tensor& input, bool training, bool instance) {
  if (!training || input.dim() < 2) return;
  int64_t values = instance ? 1 : input.size(0);
  for (int64_t d = 2; d < input.dim(); ++d) values *= input.size(d);
  TORCH_CHECK(values != 1, instance ? "instance" : "batch",
              " norm in training needs more than one value per channel, and its input has sizes ",
              input.sizes(), ": the variance of one value is not defined",
              instance ? "" : "; give each microbatch two samples or more");
}

TORCH_LIBRARY_FRAGMENT(pipewright, m) {
  m.def(torch::schema("check_statistics(Tensor input, bool training, bool instance) -> ()",
                      c10::AliasAnalysisKind::CONSERVATIVE));
}
TORCH_LIBRARY_IMPL(pipewright, CompositeImplicitAutograd, m) { m.impl("check_statistics", Check); }

}  // namespace pipewright
