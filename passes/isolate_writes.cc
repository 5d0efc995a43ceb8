#include "passes/isolate_writes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plan/error.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

// Classes of values that may share memory.
class Classes {
 public:
  int Find(const Value* value) {
    auto [at, fresh] = ids_.try_emplace(value, static_cast<int>(parent_.size()));
    if (fresh) parent_.push_back(at->second);
    int id = at->second;
    while (parent_[static_cast<size_t>(id)] != id)
      id = parent_[static_cast<size_t>(id)] =
          parent_[static_cast<size_t>(parent_[static_cast<size_t>(id)])];
    return id;
  }
  void Join(const Value* a, const Value* b) {
    int x = Find(a), y = Find(b);
    if (x != y) parent_[static_cast<size_t>(std::max(x, y))] = std::min(x, y);
  }

 private:
  std::map<const Value*, int> ids_;
  std::vector<int> parent_;
};

bool HasMemory(const Value* value) {
  auto kind = value->type()->kind();
  return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType ||
         kind == c10::TypeKind::OptionalType || kind == c10::TypeKind::TupleType;
}

bool Shares(const c10::FunctionSchema& schema, size_t argument, size_t result) {
  return schema.may_contain_alias({c10::SchemaArgType::input, argument},
                                  {c10::SchemaArgType::output, result});
}

// Dropout hands its input on where it does nothing, which its schema does not say.
bool MayReturnInput(const Node* node) {
  return std::string(node->kind().toUnqualString()).find("dropout") != std::string::npos;
}

// The node and everything in its blocks.
std::vector<Node*> WithInner(Node* top) {
  std::vector<Node*> all = {top};
  for (size_t i = 0; i < all.size(); ++i)
    for (Block* block : all[i]->blocks()) {
      for (Node* inner : block->nodes()) all.push_back(inner);
      all.push_back(block->return_node());
    }
  return all;
}

void JoinNode(Node* top, Classes& classes) {
  for (Node* node : WithInner(top)) {
    bool structure = node->kind() == prim::ListConstruct || node->kind() == prim::ListUnpack ||
                     node->kind() == prim::TupleConstruct || node->kind() == prim::TupleUnpack ||
                     !node->blocks().empty();
    const c10::FunctionSchema* schema = structure ? nullptr : node->maybeSchema();
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      if (!HasMemory(node->outputs()[o])) continue;
      for (size_t i = 0; i < node->inputs().size(); ++i) {
        if (!HasMemory(node->inputs()[i])) continue;
        if (structure || (schema && i < schema->arguments().size() && Shares(*schema, i, o)) ||
            (i == 0 && MayReturnInput(node)))
          classes.Join(node->inputs()[i], node->outputs()[o]);
      }
      for (Block* block : node->blocks())
        for (Value* returned : block->outputs())
          if (HasMemory(returned)) classes.Join(returned, node->outputs()[o]);
    }
  }
}

struct Write {
  Node* top;   // on the top level
  Node* node;  // that writes
  Value* value;
  size_t position;
};

class Isolator {
 public:
  Isolator(Model& model, Assignment& assignment) : model_(model), assignment_(assignment) {}

  void Run() {
    std::vector<Write> writes;
    size_t position = 0;
    for (Node* top : model_.graph->nodes()) {
      JoinNode(top, global_);
      position_[top] = position++;
      for (Node* node : WithInner(top)) {
        const c10::FunctionSchema* schema = node->maybeSchema();
        if (!schema || !schema->is_mutable()) continue;
        for (size_t i = 0; i < node->inputs().size() && i < schema->arguments().size(); ++i)
          if (schema->is_mutable({c10::SchemaArgType::input, i}) && HasMemory(node->inputs()[i]))
            writes.push_back({top, node, node->inputs()[i], position_[top]});
      }
    }
    position_[model_.graph->return_node()] = position;
    if (writes.empty()) return;
    local_.resize(static_cast<size_t>(assignment_.modules));
    for (Node* top : model_.graph->nodes()) JoinNode(top, local_[static_cast<size_t>(Module(top))]);
    CollectUses(writes);
    for (const Write& write : writes) Check(write);
    Clone();
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

  // Uses of the classes that are written, by class.
  void CollectUses(const std::vector<Write>& writes) {
    std::set<int> written;
    for (const Write& write : writes) written.insert(global_.Find(write.value));
    auto collect = [&](Node* top, Node* node) {
      for (Value* input : node->inputs())
        if (HasMemory(input) && written.count(global_.Find(input)))
          uses_[global_.Find(input)].push_back({top, node, input, position_.at(top)});
    };
    for (Node* top : model_.graph->nodes())
      for (Node* node : WithInner(top)) collect(top, node);
    collect(model_.graph->return_node(), model_.graph->return_node());
  }

  [[noreturn]] void Refuse(const Write& write, const Write& use, const std::string& why) const {
    throw Error(
        model_.file + ": " + write.node->kind().toUnqualString() + ", " + Origin(write.node),
        "writes in place to memory that " +
            (use.node == model_.graph->return_node()
                 ? std::string("the model returns")
                 : std::string(use.node->kind().toUnqualString()) + " (" + Origin(use.node) +
                       ") uses") +
            "; " + why,
        "use the operation that makes a new tensor (x = x + y instead of x += y), or cut "
        "elsewhere");
  }

  void Check(const Write& write) {
    int module = Module(write.top);
    Classes& local = local_[static_cast<size_t>(module)];
    const std::vector<Write>& uses = uses_[global_.Find(write.value)];
    bool weight = false;
    for (const Write& use : uses) weight = weight || IsWeight(use.value);
    for (const Write& use : uses) {
      int user = use.node == model_.graph->return_node() ? assignment_.modules : Module(use.top);
      if (weight && user != module && user < assignment_.modules)
        Refuse(write, use, "a buffer that is written belongs to one module");
      if (use.position <= write.position || Producer(use.value) > module) continue;
      bool shared = local.Find(use.value) == local.Find(write.value);
      bool seen = user == module ? shared : Producer(use.value) == module && shared;
      if (!seen && !IsWeight(use.value)) Refuse(write, use, "a cut separates the two");
    }
    if (weight) return;
    for (const Write& use : uses)
      if (Module(use.top) == module && Producer(use.value) != module &&
          local.Find(use.value) == local.Find(write.value))
        clones_.insert({module, use.value->debugName()}),
            received_[use.value->debugName()] = use.value;
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
      torch::jit::WithInsertPoint before(first);
      Value* none = model_.graph->insertConstant(c10::IValue());
      Node* clone =
          model_.graph->insertNode(model_.graph->create(c10::aten::clone, {value, none}, 1));
      clone->copyMetadata(first);
      clone->output()->setDebugName(name + "_own");
      if (const ValueMeta* meta = model_.MetaOf(value)) {
        ValueMeta copy = *meta;
        model_.meta[clone->output()->debugName()] = copy;
      }
      assignment_.module_of[none->node()] = assignment_.module_of[clone] = module;
      for (const torch::jit::Use& use : own) use.user->replaceInput(use.offset, clone->output());
    }
  }

  Model& model_;
  Assignment& assignment_;
  Classes global_;
  std::vector<Classes> local_;
  std::map<const Node*, size_t> position_;
  std::map<int, std::vector<Write>> uses_;
  std::set<std::pair<int, std::string>> clones_;
  std::map<std::string, Value*> received_;
};

}  // namespace

void IsolateWrites(Model& model, Assignment& assignment) { Isolator(model, assignment).Run(); }

}  // namespace pipewright
