#include "passes/split/isolate_writes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "ops/statistics.h"
#include "passes/graph/error_context.h"
#include "passes/graph/gradients.h"
#include "passes/graph/hidden_memory.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

class Isolator {
 public:
  Isolator(Model& model, ModuleAssignment& assignment)
      : model_(model), assignment_(assignment), memory_(model, Alias::kKnown) {}

  void Run() {
    std::vector<Write> writes;
    size_t position = 0;
    Node* off = nullptr;  // the node that switched gradients off
    for (Node* top : model_.graph->nodes()) {
      CollectWrites(top, position, writes);
      position_[top] = position++;
      tops_.push_back(top);
      // Clone() copies received values before such a region, so that the copy passes gradients on.
      if (top->kind() == c10::Symbol::aten("set_grad_enabled"))
        off = torch::jit::constant_as<bool>(top->input(0)).value_or(true) ? nullptr
              : off                                                       ? off
                                                                          : top;
      else if (off)
        region_[top] = off;
    }
    position_[model_.graph->return_node()] = position;
    if (writes.empty()) return;
    std::vector<std::vector<Node*>> nodes(static_cast<size_t>(assignment_.modules));
    for (Node* top : model_.graph->nodes()) nodes[static_cast<size_t>(Module(top))].push_back(top);
    for (const auto& own : nodes) local_.emplace_back(own, Alias::kUnknown);
    CollectUses(writes);
    for (const Write& write : writes) {
      const ErrorContext here(write.node);
      Check(write);
    }
    Clone();
    CopyBuffersThatAreKept();
  }

 private:
  int Module(const Node* node) const {
    auto found = assignment_.module_of.find(node);
    return found == assignment_.module_of.end() ? -1 : found->second;
  }
  int Producer(const Value* value) const {
    const Node* node = value->node();
    while (node->owningBlock() != model_.graph->block()) node = node->owningBlock()->owningNode();
    return node->kind() == prim::Param ? -1 : Module(node);
  }
  bool IsWeight(const Value* value) const {
    return value->node() == model_.graph->param_node() && value->offset() < model_.weights.size();
  }

  // Collects the uses of written memory, in order.
  void CollectUses(const std::vector<Write>& writes) {
    for (const Write& write : writes) written_.merge(memory_.Written(write));
    auto collect = [&](Node* top, Node* node) {
      for (Value* input : node->inputs())
        if (HasMemory(input) && Intersect(memory_.Of(input), written_))
          uses_.push_back({top, node, input, position_.at(top)});
    };
    for (Node* top : model_.graph->nodes())
      for (Node* node : WithInner(top)) collect(top, node);
    collect(model_.graph->return_node(), model_.graph->return_node());
  }

  [[noreturn]] void Refuse(
      const Write& write, const Write& use, const std::string& why,
      const std::string& cure = "use the operation that makes a new tensor (x = x + y instead of "
                                "x += y), or cut elsewhere") const {
    throw Error(
        model_.file + ": " + write.node->kind().toUnqualString() + ", " + Origin(write.node),
        "writes in place to memory that " +
            (use.node == model_.graph->return_node()
                 ? std::string("the model returns")
                 : std::string(use.node->kind().toUnqualString()) + " (" + Origin(use.node) +
                       ") uses") +
            "; " + why,
        cure);
  }

  // Returns true if two values that share memory in the model also share it in the given module.
  // Two values that the module receives are separate tensors there.
  bool TogetherIn(int module, const Value* a, const Value* b) {
    Memory& local = local_[static_cast<size_t>(module)];
    if (local.ViewedBy(a) == local.ViewedBy(b)) return true;
    for (const Value* x : local.Of(a))
      for (const Value* y : local.Of(b))
        if (x != y && Producer(x) != module && Producer(y) != module && memory_.Share(x, y))
          return false;
    return true;
  }

  void CheckWeights(const Write& write, const Memory::Values& written) {
    for (const Value* value : written) {
      if (!IsWeight(value)) continue;
      Weight& weight = model_.weights[value->offset()];
      if (weight.kind == WeightKind::kConstant)  // a tensor that the model did not register
        weight.kind = WeightKind::kBuffer, weight.persistent = false;
      const std::string where =
          model_.file + ": " + write.node->kind().toUnqualString() + ", " + Origin(write.node);
      if (weight.kind == WeightKind::kParameter && IsBehindAutograd(write, tops_, memory_))
        throw Error(where,
                    "writes through .data to the parameter \"" + weight.names[0] +
                        "\": autograd does not see that, and the backward of one microbatch would "
                        "use what the forward of a later one has written",
                    "constrain a buffer, or the value that is computed from the parameter");
      // Scripted models keep branches on the training mode; exports keep only the flags of norms.
      const bool exported = model_.in_training && model_.file.ends_with(".pt2");
      if (exported && weight.kind == WeightKind::kBuffer && !WritesStatistics(write.node) &&
          !weight.names[0].ends_with("num_batches_tracked") &&
          warned_.insert(weight.names[0]).second)
        assignment_.warnings.push_back(
            where + ": writes to the buffer \"" + weight.names[0] +
            "\" in eval, infer and validation, too: the file does not say whether the model does "
            "that in training only");
    }
  }

  void Check(const Write& write) {
    const int module = Module(write.top);
    const Memory::Values written = memory_.Written(write);
    CheckWeights(write, written);
    for (const Write& use : uses_) {
      const Memory::Values& used = memory_.Of(use.value);
      if (!Intersect(written, used)) continue;
      const bool returned = use.node == model_.graph->return_node();
      const int user = returned ? assignment_.modules : Module(use.top);
      for (const Value* value : used)
        if (IsWeight(value) && written.count(value) && user != module && !returned)
          Refuse(write, use,
                 "buffer \"" + model_.weights[value->offset()].names[0] + "\", written in module " +
                     std::to_string(module) + " and used in module " + std::to_string(user) +
                     ": a buffer that is written belongs to one module",
                 "cut before or after all that uses the buffer, or put it into one module by "
                 "--split FILE");
      if (use.position <= write.position || Producer(use.value) > module) continue;
      const bool seen = (user == module || Producer(use.value) == module) &&
                        TogetherIn(module, use.value, write.value);
      if (!seen && !IsWeight(use.value)) Refuse(write, use, "a cut separates the two");
    }
    RefuseHidden(write, written);
    for (const Value* value : local_[static_cast<size_t>(module)].Of(write.value))
      if (Producer(value) != module && !IsWeight(value) &&
          value->type()->kind() == c10::TypeKind::TensorType)
        clones_.insert({module, value->debugName()}),
            received_[value->debugName()] = const_cast<Value*>(value);
  }

  // Throws Error if a copy would hide a write from a backward. Autograd itself raises an error if a
  // write changes what an operation saved, unless the two share memory without its knowledge: then
  // the backward reads what was written, which a copy does not contain.
  void RefuseHidden(const Write& write, const Memory::Values& written) {
    Memory::Values hidden;  // written here, and also seen by operations of other modules
    for (Node* node : AllNodes(*model_.graph))
      if (HidesMemory(node))
        for (const Value* value : memory_.Of(node->input(0)))
          if (written.count(value) && !IsWeight(value)) hidden.insert(value);
    if (hidden.empty()) return;
    const auto gradient = ValuesWithGradient(model_);
    auto refuse = [&](Node* node) {
      Refuse(write, {node, node, nullptr, 0},
             "autograd does not know of that, and a cut separates the two");
    };
    const int module = Module(write.top);
    for (const Value* value : hidden)
      if (Producer(value) != module && gradient.count(value) && !SavesNoResult(value->node()))
        refuse(const_cast<Node*>(value->node()));
    for (const Write& use : uses_) {
      const auto outputs = use.node->outputs();
      const bool keeps =
          !HidesMemory(use.node) && use.position < write.position && Module(use.top) != module &&
          Intersect(memory_.Of(use.value), hidden) && !SavesNoInput(use.node) &&
          std::any_of(outputs.begin(), outputs.end(), [&](const Value* output) {
            return gradient.count(output) && !Intersect(memory_.Of(output), hidden);
          });
      if (keeps) refuse(use.node);
    }
  }

  // Returns true for operators known not to keep their operands for the backward.
  static bool SavesNoInput(const Node* node) {
    static const std::set<std::string> kNames = {"add", "sub",   "neg",  "cat", "stack",
                                                 "sum", "clone", "mean", "to"};
    return node->kind().is_aten() && kNames.count(node->kind().toUnqualString()) > 0;
  }

  // Returns true for operators known not to keep their result for the backward.
  static bool SavesNoResult(const Node* node) {
    static const std::set<std::string> kNames = {"linear", "matmul", "mm",  "bmm",   "addmm", "add",
                                                 "sub",    "mul",    "div", "neg",   "clone", "to",
                                                 "cat",    "stack",  "sum", "mean",  "conv1d",
                                                 "conv2d", "conv3d", "sin", "cos",   "embedding"};
    return node->kind().is_aten() && kNames.count(node->kind().toUnqualString()) > 0;
  }

  void Clone() {
    for (const auto& [module, name] : clones_) {
      Value* value = received_.at(name);
      Node* first = nullptr;
      std::vector<torch::jit::Use> uses = value->uses();
      std::vector<torch::jit::Use> own;
      for (const torch::jit::Use& use : uses) {
        Node* top = use.user;
        while (top->owningBlock() != model_.graph->block()) top = top->owningBlock()->owningNode();
        if (Module(top) != module) continue;
        own.push_back(use);
        if (!first || position_.at(top) < position_.at(first)) first = top;
      }
      auto region = region_.find(first);
      torch::jit::WithInsertPoint before(region == region_.end() ? first : region->second);
      Value* none = model_.graph->insertConstant(c10::IValue());
      Node* clone =
          model_.graph->insertNode(model_.graph->create(c10::aten::clone, {value, none}, 1));
      clone->copyMetadata(first);
      clone->output()->setDebugName(name + "_own");
      if (const ValueMeta* meta = model_.MetaOf(value)) {
        ValueMeta copy = *meta;
        model_.meta[clone->output()->debugName()] = copy;
      }
      assignment_.notes.emplace_back(module, "clones " + name + ", which it writes to");
      assignment_.module_of[none->node()] = assignment_.module_of[clone] = module;
      for (const torch::jit::Use& use : own) use.user->replaceInput(use.offset, clone->output());
    }
  }

  // Gives operations a copy of a buffer that is written. An operation may save its inputs for its
  // backward, but before that other microbatches run forward and write to the buffer.
  void CopyBuffersThatAreKept() {
    const auto gradient = ValuesWithGradient(model_);
    Memory::Values buffers;
    for (const Value* value : written_)
      if (IsWeight(value) && model_.weights[value->offset()].kind != WeightKind::kParameter)
        buffers.insert(value);
    for (const Write& use : uses_) {
      Node* node = use.node;
      const auto inputs = node->inputs();
      if (use.value->type()->kind() != c10::TypeKind::TensorType ||
          std::find(inputs.begin(), inputs.end(), use.value) == inputs.end() ||  // already copied
          !Intersect(memory_.Of(use.value), buffers) || !MayKeep(node, buffers, gradient))
        continue;
      torch::jit::WithInsertPoint before(node);
      Value* none = model_.graph->insertConstant(c10::IValue());
      Node* clone =
          model_.graph->insertNode(model_.graph->create(c10::aten::clone, {use.value, none}, 1));
      clone->copyMetadata(node);
      if (use.top == node)
        assignment_.module_of[none->node()] = assignment_.module_of[clone] = Module(node);
      node->replaceInputWith(use.value, clone->output());
    }
  }

  // Returns true if an operation with a gradient takes values of this memory, directly or in a
  // list, without writing to them or returning them. It may write to other values.
  bool MayKeep(Node* node, const Memory::Values& memory,
               const std::unordered_set<const Value*>& gradient) {
    auto in_memory = [&](const Value* value) {
      return HasMemory(value) && Intersect(memory_.Of(value), memory);
    };
    // A value inside a branch or a loop may have one, too.
    auto has_gradient = [&](const Value* value) {
      return gradient.count(value) > 0 || (value->type()->kind() == c10::TypeKind::TensorType &&
                                           value->node()->owningBlock() != model_.graph->block());
    };
    auto any = [](const auto& values, const auto& of) {
      return std::any_of(values.begin(), values.end(), of);
    };
    if (node->kind() == prim::ListConstruct) {
      bool kept = false;
      for (const torch::jit::Use& list : node->output()->uses()) {
        if (list.user->kind() == prim::ListConstruct || !TakesOnly(list.user, memory) ||
            any(list.user->outputs(), in_memory))
          return false;
        kept = kept || any(node->inputs(), has_gradient) || any(list.user->inputs(), has_gradient);
      }
      return kept;
    }
    return TakesOnly(node, memory) && !any(node->outputs(), in_memory) &&
           any(node->inputs(), has_gradient);
  }

  bool TakesOnly(Node* node, const Memory::Values& memory) {
    if (node == model_.graph->return_node() || !node->blocks().empty()) return false;
    std::vector<Write> writes;
    CollectWrites(node, 0, writes);
    return std::none_of(writes.begin(), writes.end(), [&](const Write& write) {
      return Intersect(memory_.Written(write), memory);
    });
  }

  Model& model_;
  ModuleAssignment& assignment_;
  Memory memory_;              // the whole model's
  std::vector<Memory> local_;  // by module
  Memory::Values written_;
  std::vector<Write> uses_;
  std::map<const Node*, size_t> position_;
  std::set<std::pair<int, std::string>> clones_;
  std::map<std::string, Value*> received_;
  std::map<const Node*, Node*> region_;  // by node without gradients: what switched them off
  std::set<std::string> warned_;         // buffers
  std::vector<Node*> tops_;              // nodes of the graph's top level
};

}  // namespace

void IsolateWrites(Model& model, ModuleAssignment& assignment) {
  Isolator(model, assignment).Run();
}

}  // namespace pipewright
