#include "passes/graph/gradients.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/ir/constants.h>

#include <set>

#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

// Returns true if results depend only on the shapes of the inputs, or are detached.
static bool CutsOff(const Node* node) {
  static const std::set<std::string> kNames = {"detach",       "detach_",
                                               "zeros_like",   "ones_like",
                                               "full_like",    "empty_like",
                                               "rand_like",    "randn_like",
                                               "randint_like", "new_zeros",
                                               "new_ones",     "new_full",
                                               "new_empty",    "new_empty_strided",
                                               "argmax",       "argmin",
                                               "bucketize",    "searchsorted",
                                               "histc",        "eq",
                                               "ne",           "lt",
                                               "le",           "gt",
                                               "ge",           "argsort",
                                               "isnan",        "isinf",
                                               "isfinite",     "logical_not",
                                               "logical_and",  "logical_or",
                                               "nonzero",      "multinomial",
                                               "nextafter"};
  return node->kind().is_aten() && kNames.count(node->kind().toUnqualString());
}

// Returns true if the second result holds indices into the first.
static bool GivesIndices(const Node* node) {
  static const std::set<std::string> kNames = {"max",    "min",       "sort",     "topk",
                                               "median", "mode",      "kthvalue", "cummax",
                                               "cummin", "nanmedian", "msort"};
  return node->kind().is_aten() && kNames.count(node->kind().toUnqualString());
}

GradientFlow::GradientFlow(const Model& model)
    : memory_(model, Alias::kUnknown, /*of_gradients=*/true) {
  for (size_t i = 0; i < model.weights.size(); ++i)
    if (model.weights[i].requires_grad) with_.insert(model.weight_input(i));
  // If an in-place operation writes a value with a gradient, the memory has a gradient under all
  // its names: a tensor and its views, a list and its elements.
  Memory::Values written;
  auto has = [&](const Value* value) {
    return with_.count(value) ||
           (!written.empty() && HasMemory(value) && Intersect(memory_.Of(value), written));
  };
  auto may_have = [&](const Value* output) {
    auto kind = output->type()->kind();
    const ValueMeta* meta = model.MetaOf(output);
    bool number = kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
                  kind == c10::TypeKind::BoolType;
    bool whole = kind == c10::TypeKind::TensorType && meta && !at::isFloatingType(meta->dtype) &&
                 !at::isComplexType(meta->dtype);
    return !number && !whole;
  };
  bool enabled = true;
  for (Node* node : model.graph->nodes()) {
    const ErrorContext here(node);
    if (node->kind() == c10::Symbol::aten("set_grad_enabled"))
      enabled = torch::jit::constant_as<bool>(node->input(0)).value_or(true);
    // While gradients are off, in-place writes, operations without effect, and branches may still
    // return an operand itself, which keeps its gradient. Views count, too, although they lose
    // theirs.
    for (const Value* output : enabled ? at::ArrayRef<Value*>() : node->outputs())
      for (const Node* inner : WithInner(node))
        for (const Value* input : inner->inputs())
          if (HasMemory(output) && HasMemory(input) && may_have(output) && has(input) &&
              Intersect(memory_.Of(input), memory_.Of(output))) {
            through_.insert(node);
            same_[node].insert(input);
            with_.insert(output);
          }
    if (!enabled || CutsOff(node)) continue;
    bool any = false;
    for (const Node* inner : WithInner(node))
      for (const Value* input : inner->inputs()) any = any || has(input);
    if (!any) continue;
    through_.insert(node);
    for (const Value* output : node->outputs()) {
      // Without a recorded dtype, recognizes indices by their operator: they are integers.
      bool index = !model.MetaOf(output) && output->offset() == 1 && GivesIndices(node);
      if (may_have(output) && !index) with_.insert(output);
    }
    std::vector<Write> writes;
    CollectWrites(node, 0, writes);
    for (const Write& write : writes) written.merge(memory_.Written(write));
  }
  for (Node* node : model.graph->nodes())
    for (const Value* output : node->outputs())
      if (HasMemory(output) && has(output) && may_have(output)) with_.insert(output);
}

GradientFlow::Values GradientFlow::ReachedFrom(const Value* output,
                                               const std::vector<Node*>& nodes) {
  Values reached = {output};
  Memory::Values seen = memory_.Of(output);  // a write there changes `output`
  for (auto at = nodes.rbegin(); at != nodes.rend(); ++at) {
    Node* node = *at;
    if (!through_.count(node)) continue;
    const ErrorContext here(node);
    bool any = false;
    for (const Value* made : node->outputs()) any = any || reached.count(made);
    std::vector<Write> writes;
    CollectWrites(node, 0, writes);
    for (const Write& write : writes) any = any || Intersect(memory_.Written(write), seen);
    if (!any) continue;
    for (const Node* inner : WithInner(node))
      for (const Value* input : inner->inputs()) {
        if (same_.count(node) && !same_.at(node).count(input)) continue;
        if (!reached.insert(input).second || !HasMemory(input)) continue;
        const Memory::Values& memory = memory_.Of(input);
        seen.insert(memory.begin(), memory.end());
      }
  }
  std::erase_if(reached, [&](const Value* value) { return !with_.count(value); });
  return reached;
}

std::unordered_set<const Value*> ValuesWithGradient(const Model& model) {
  return GradientFlow(model).values();
}

bool HasNoDerivative(const c10::FunctionSchema& schema) {
  // Each of these is composed of other operators, one of which has no derivative.
  static const std::set<std::string> kComposed = {"aten::dequantize", "aten::histogramdd",
                                                  "aten::linalg_ldl_factor"};
  if (kComposed.count(schema.name())) return true;
  const auto op =
      c10::Dispatcher::singleton().findSchema({schema.name(), schema.overload_name()});
  if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)) return false;
  // Autograd goes through a composed operator unless the CPU has a kernel for it as a whole.
  if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op->hasKernelForDispatchKey(c10::DispatchKey::CPU))
    return false;
  // All operators without a derivative share one kernel, which takes any arguments. Only its
  // description in the dispatcher's state distinguishes it from other kernels.
  const std::string text = op->dumpState();
  const size_t at = text.find("Autograd[alias]: ");
  return at != std::string::npos &&
         text.substr(at, text.find('\n', at) - at).find(" :: (none) [") != std::string::npos;
}

}  // namespace pipewright
