#include "passes/split/layouts.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <string>

#include "base/error.h"
#include "passes/graph/error_context.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

using Names = std::set<std::string>;

// Matches torch's operator, or the compiler's replacement (dropout).
bool IsOneOf(const Node* node, const Names& names) {
  const bool known = node->kind().is_aten() ||
                     std::string(node->kind().toQualString()).starts_with("pipewright::");
  return known && names.count(node->kind().toUnqualString()) > 0;
}

bool ReadsLayout(const Node* node) {
  static const Names kNames = {"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter",
                               "_reshape_alias", "stride", "sym_stride", "storage_offset",
                               "sym_storage_offset", "is_contiguous", "sym_is_contiguous",
                               "is_strides_like_format", "is_non_overlapping_and_dense"};
  return IsOneOf(node, kNames);
}

// Operators whose results are always contiguous.
bool GivesContiguous(const Node* node) {
  static const Names kNames = {"linear", "mm", "addmm", "bmm", "embedding", "layer_norm"};
  return IsOneOf(node, kNames);
}

// Operators whose results have exactly the elements of their first argument, in its memory or in
// new memory.
bool KeepsAll(const Node* node) {
  static const Names kNames = {
      "alias",   "contiguous", "detach",   "dropout",  "feature_dropout", "flatten",   "mT",
      "moveaxis", "movedim",   "numpy_T",  "permute",  "ravel",           "reshape",   "reshape_as",
      "squeeze", "swapaxes",   "swapdims", "t",        "to",              "transpose", "type_as",
      "unflatten", "unsqueeze", "view",    "view_as"};
  return IsOneOf(node, kNames);
}

// Returns true if the operation creates a tensor that fills its memory. Composite operators may
// return a view that their schemas do not declare; those listed do not.
bool MakesTensor(const Node* node, size_t output) {
  static const Names kComposed = {
      "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
      "conv_transpose3d", "group_norm", "instance_norm", "layer_norm", "linear", "log_softmax",
      "matmul", "max_pool1d", "max_pool2d", "max_pool3d", "rms_norm", "scaled_dot_product_attention",
      "softmax"};
  static const Names kGaps = {"empty_strided", "new_empty_strided"};
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (!schema || !node->blocks().empty() || output >= schema->returns().size() ||
      schema->returns()[output].alias_info() || IsOneOf(node, kGaps))
    return false;
  if (IsOneOf(node, kComposed)) return true;
  const auto op =
      c10::Dispatcher::singleton().findSchema({schema->name(), schema->overload_name()});
  return op && (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                op->hasKernelForDispatchKey(
                    c10::DispatchKey::CompositeExplicitAutogradNonFunctional));
}

// Returns true if the value is known to fill its memory without gaps, so that it crosses a cut
// unchanged, and from a weight file to the model.
bool IsWhole(const Model& model, const Value* value) {
  static const Names kOtherLayout = {"as_strided_", "resize_", "resize_as_", "set_"};
  while (true) {
    Node* node = const_cast<Node*>(value->node());
    const ErrorContext here(node);
    if (value->type()->kind() != c10::TypeKind::TensorType) return false;
    if (node->kind() == prim::Param)
      return !node->owningBlock()->owningNode() &&
             (value->offset() >= model.weights.size() || !model.weights[value->offset()].own_layout);
    if (KeepsAll(node))
      value = node->input(0);
    else if (const Value* written = Returned(node); written && !IsOneOf(node, kOtherLayout))
      value = written;
    else
      return node->kind() == prim::Constant || MakesTensor(node, value->offset());
  }
}

// Returns true for a list of numbers.
bool IsNumbers(const Value* value) {
  const auto list = value->type()->cast<c10::ListType>();
  if (!list) return false;
  const auto kind = list->getElementType()->kind();
  return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
         kind == c10::TypeKind::BoolType;
}

bool IsGathered(const Node* node) {
  return node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct ||
         node->kind() == prim::DictConstruct;
}

// Walks back from a reader's inputs through all values on whose layout it may depend.
class Follower {
 public:
  Follower(const Model& model, Node* reader, std::vector<LayoutUse>& uses)
      : model_(model), reader_(reader), uses_(uses) {
    Follow(reader, reader);
    while (!todo_.empty()) {
      const Value* value = todo_.back();
      todo_.pop_back();
      Node* node = const_cast<Node*>(value->node());
      if (node->kind() == prim::Param) {  // carried by a loop, or an input of the model
        if (node = node->owningBlock()->owningNode(); !node) continue;
      }
      if (!GivesContiguous(node)) Follow(node, node);
      for (torch::jit::Block* block : node->blocks())
        Follow(block->return_node(), block->return_node());
    }
  }

 private:
  // Follows the inputs of `node`, directly or in a list made for `user`.
  void Follow(Node* node, Node* user) {
    for (Value* input : node->inputs()) {
      if (!HasMemory(input) || IsNumbers(input)) continue;
      if (IsGathered(input->node())) {
        Follow(input->node(), user);
        continue;
      }
      if (!seen_.insert({input, user}).second) continue;
      if (!IsWhole(model_, input)) uses_.push_back({input, user, reader_});
      todo_.push_back(input);
    }
  }

  const Model& model_;
  Node* const reader_;
  std::vector<LayoutUse>& uses_;
  std::vector<const Value*> todo_;
  std::set<std::pair<const Value*, const Node*>> seen_;
};

int ModuleOf(const Model& model, const ModuleAssignment& assignment, const Node* node) {
  while (node->owningBlock() != model.graph->block()) node = node->owningBlock()->owningNode();
  auto found = assignment.module_of.find(node);
  return found == assignment.module_of.end() ? -1 : found->second;
}

}  // namespace

std::vector<LayoutUse> LayoutUses(const Model& model) {
  std::vector<LayoutUse> uses;
  for (Node* node : AllNodes(*model.graph)) {
    const ErrorContext here(node);
    if (ReadsLayout(node)) Follower(model, node, uses);
  }
  return uses;
}

void CheckLayouts(const Model& model, const ModuleAssignment& assignment) {
  for (const LayoutUse& use : LayoutUses(model)) {
    const ErrorContext here(use.reader);
    const Node* made = use.value->node();
    if (made == model.graph->param_node())
      throw Error(model.file + ": " + use.reader->kind().toUnqualString() + ", " + Origin(use.reader),
                  "depends on how the weight \"" + model.weights[use.value->offset()].names[0] +
                      "\" lies in memory, not in the order of its dimensions; a package stores "
                      "weights in that order",
                  "make it contiguous before the export: p.data = p.data.contiguous()");
    const int from = ModuleOf(model, assignment, made);
    const int to = ModuleOf(model, assignment, use.user);
    if (from < 0 || to < 0 || from == to) continue;
    throw Error(model.file + ": " + use.reader->kind().toUnqualString() + ", " + Origin(use.reader),
                "depends on how \"" + use.value->debugName() + "\" of " +
                    made->kind().toUnqualString() + " (" + Origin(made) +
                    ") lies in memory; the cut between modules " + std::to_string(from) + " and " +
                    std::to_string(to) + " passes it on without the memory around it",
                "make it a tensor of its own before the cut (.clone()), or cut elsewhere");
  }
}

}  // namespace pipewright
