#include "passes/split/pass_through.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "passes/graph/error_context.h"
#include "passes/graph/gradients.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

// Returns true for composite operators that nevertheless use each operand once.
bool UsesOnce(const std::string& name) {
  static const std::set<std::string> kNames = {
      // clang-format off
      "linear", "matmul", "einsum", "bilinear", "outer", "inner",
      "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
      "layer_norm", "group_norm", "batch_norm", "instance_norm",
      "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout",
      "scaled_dot_product_attention", "softmax", "log_softmax", "cross_entropy_loss", "nll_loss_nd",
      "relu6", "selu", "log_sigmoid", "square", "std", "var",
      "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "adaptive_avg_pool1d",
      "adaptive_avg_pool2d", "adaptive_avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d",
      "reshape", "reshape_as", "view_as", "expand_as", "broadcast_to", "flatten", "unflatten",
      "ravel", "movedim", "moveaxis", "swapaxes", "swapdims", "T", "mT", "numpy_T", "chunk", "split",
      "contiguous", "to", "type_as", "real", "concat", "concatenate", "hstack", "vstack",
      "multiply", "subtract", "divide", "true_divide", "where", "clip",
      // clang-format on
  };
  return kNames.count(name) > 0;
}

// Operators that may be the identity and return their operand.
bool MayGiveItsOperand(const std::string& name) {
  static const std::set<std::string> kNames = {
      "contiguous", "to",      "type_as",         "real",          "flatten",
      "ravel",      "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
  };
  return kNames.count(name) > 0;
}

bool IsMadeOfOthers(const Node* node) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (!schema) return true;
  const auto op = c10::Dispatcher::singleton().findOp(schema->operator_name());
  return !op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

class Passing {
 public:
  Passing(Model& model, ModuleAssignment& assignment)
      : model_(model), assignment_(assignment), gradient_(ValuesWithGradient(model)) {}

  void Run() {
    std::vector<Value*> values;
    for (Node* node : model_.graph->nodes()) {
      if (node->kind() != prim::Constant) last_[Module(node)] = node;
      for (Value* output : node->outputs())
        if (gradient_.count(output) && output->type()->kind() == c10::TypeKind::TensorType)
          values.push_back(output);
    }
    for (Node* node : AllNodes(*model_.graph))
      for (const Value* output : node->outputs())
        if (output->hasDebugName()) taken_.insert(output->debugName());
    for (Value* value : values) {
      const ErrorContext here(value->node());
      Follow(value);
    }
  }

 private:
  const Node* Top(const Node* node) const {
    while (node->owningBlock() != model_.graph->block()) node = node->owningBlock()->owningNode();
    return node;
  }

  // Returns the number of modules for the graph's outputs, which follow all of them.
  int Module(const Node* node) const {
    auto found = assignment_.module_of.find(Top(node));
    return found == assignment_.module_of.end() ? assignment_.modules : found->second;
  }

  // Returns how often autograd adds to the value's gradient for this use; 2 means more than once,
  // or unknown.
  int Count(const Use& use) const {
    const Node* node = use.user;
    if (node == model_.graph->return_node()) return 1;
    const Node* top = Top(node);
    if (std::none_of(top->outputs().begin(), top->outputs().end(),
                     [&](const Value* output) { return gradient_.count(output) > 0; }))
      return 0;
    if (!top->blocks().empty()) return 2;
    const std::string name = node->kind().toUnqualString();
    if (node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct)
      return Count(node->output()->uses());
    if (MayGiveItsOperand(name)) return std::max(1, Count(node->output()->uses()));
    return IsMadeOfOthers(node) && !UsesOnce(name) ? 2 : 1;
  }
  int Count(const std::vector<Use>& uses) const {
    int count = 0;
    for (const Use& use : uses) count += Count(use);
    return std::min(count, 2);
  }

  void Follow(Value* value) {
    const int home = Module(value->node());
    std::map<int, std::vector<Use>> uses;  // by module
    for (const Use& use : value->uses()) uses[Module(use.user)].push_back(use);
    std::erase_if(uses, [&](const auto& of_module) { return Count(of_module.second) == 0; });
    if (uses.empty()) return;
    const int end = uses.rbegin()->first;
    for (const auto& [module, own] : uses) {
      if (module == home || module == end || Count(own) < 2) continue;
      Value* passed = Insert(value, module, own[0].user);
      for (auto later = uses.upper_bound(module); later != uses.end(); ++later)
        for (const Use& use : later->second) use.user->replaceInput(use.offset, passed);
      if (end == assignment_.modules) {  // the model's output keeps its name
        const std::string name = value->debugName(), other = passed->debugName();
        value->setDebugName(other);
        passed->setDebugName(name);
      }
      value = passed;
    }
  }

  // Inserts an alias after all other operations of the module, because its backward begins there.
  Value* Insert(Value* value, int module, const Node* user) {
    Node* alias = model_.graph->create(c10::aten::alias, {value}, 1);
    alias->insertAfter(last_.at(module));
    last_[module] = alias;
    assignment_.module_of[alias] = module;
    alias->copyMetadata(const_cast<Node*>(Top(user)));
    const std::string start = value->debugName() + "_on";
    std::string name = start;
    for (int k = 2; !taken_.insert(name).second; ++k) name = start + std::to_string(k);
    alias->output()->setDebugName(name);
    if (const ValueMeta* known = model_.MetaOf(value)) {
      ValueMeta meta = *known;
      model_.meta[name] = meta;
    }
    assignment_.notes.emplace_back(module,
                                   "passes on " + value->debugName() +
                                       ", so that gradients are added in the order of one process");
    return alias->output();
  }

  Model& model_;
  ModuleAssignment& assignment_;
  const std::unordered_set<const Value*> gradient_;
  std::map<int, Node*> last_;  // last node of each module
  std::set<std::string> taken_;
};

}  // namespace

void PassThrough(Model& model, ModuleAssignment& assignment) { Passing(model, assignment).Run(); }

}  // namespace pipewright
