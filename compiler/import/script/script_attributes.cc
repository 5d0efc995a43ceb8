// A part of script_graph.h: replaces attributes of modules by weights.
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "compiler/import/script/script_graph.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

constexpr size_t kMostWeights = 2'000'000;

class Resolver {
 public:
  Resolver(Model& model, ObjectTree& objects, const WeightSink& place)
      : model_(model), graph_(*model.graph), objects_(objects), place_(place) {}

  void Run() {
    CollectWeights();
    std::vector<Node*> reads;
    for (Node* node : AllNodes(graph_)) Classify(node, reads);
    // Constants come first: they become weights, whose inputs precede the others.
    std::vector<std::pair<Value*, at::IValue>> values;
    for (Node* node : reads) {
      auto value = Read(node);
      if (value) values.emplace_back(node->output(), *value);
    }
    for (const auto& [output, value] : values) CollectTensors(value, "");
    Value* self = graph_.inputs()[0];
    for (size_t i = 0; i < model_.weights.size(); ++i) {
      Value* input = graph_.insertInput(i);
      input->setType(c10::TensorType::get());
    }
    size_t count = model_.weights.size();
    graph_.insertInput(count)->setType(c10::BoolType::get());
    graph_.insertInput(count + 1)->setType(c10::DeviceObjType::get());
    for (const auto& [output, value] : values) Replace(output, value);
    for (Node* node : reads)
      if (IsTraining(node)) ReplaceTraining(node);
    DropReads(reads);
    if (self->hasUses()) {
      const Node* user = self->uses()[0].user;
      throw Error(model_.file + ": " + Origin(user),
                  "uses the module itself as a value, which is not supported",
                  "pass tensors to functions, not modules");
    }
    graph_.eraseInput(count + 2);
  }

 private:
  // Collects parameters and buffers in the order of the state dict, then the other tensors of
  // modules.
  void CollectWeights() {
    using Object = c10::intrusive_ptr<c10::ivalue::Object>;
    std::vector<std::pair<std::string, Object>> todo = {{"", objects_.At("")}};
    while (!todo.empty()) {
      auto [path, object] = todo.back();
      todo.pop_back();
      const c10::ClassTypePtr type = object->type();
      if (!path.empty()) model_.submodules.push_back(path);
      if (model_.submodules.size() > kMostWeights)
        throw Error(model_.file, "has too many submodules");
      const std::string prefix = path.empty() ? "" : path + ".";
      for (WeightKind kind : {WeightKind::kParameter, WeightKind::kBuffer}) {
        for (size_t i = 0; i < type->numAttributes(); ++i) {
          bool wanted = kind == WeightKind::kParameter ? type->is_parameter(i) : type->is_buffer(i);
          if (wanted && object->getSlot(i).isTensor())
            AddWeight(object->getSlot(i).toTensor(), prefix + type->getAttributeName(i), kind);
        }
      }
      std::vector<std::pair<std::string, Object>> children;
      for (size_t i = 0; i < type->numAttributes(); ++i) {
        const at::IValue& slot = object->getSlot(i);
        if (slot.isObject() && slot.toObjectRef().type()->is_module())
          children.emplace_back(prefix + type->getAttributeName(i), slot.toObject());
      }
      todo.insert(todo.end(), children.rbegin(), children.rend());
    }
  }

  using Key =
      std::tuple<const void*, int64_t, std::vector<int64_t>, std::vector<int64_t>, at::ScalarType>;
  static Key KeyOf(const at::Tensor& tensor) {
    return {tensor.numel() ? tensor.storage().data() : tensor.unsafeGetTensorImpl(),
            tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec(),
            tensor.scalar_type()};
  }

  size_t AddWeight(const at::Tensor& tensor, const std::string& name, WeightKind kind) {
    auto [at, fresh] = index_of_.try_emplace(KeyOf(tensor), model_.weights.size());
    if (!fresh) {
      Weight& weight = model_.weights[at->second];
      if (!name.empty() && kind != WeightKind::kConstant) weight.names.push_back(name);
      if (kind == WeightKind::kParameter) {
        weight.kind = kind;
        weight.requires_grad |= tensor.requires_grad();
      }
      return at->second;
    }
    Weight weight;
    weight.names = {name.empty() ? "constant." + std::to_string(constants_++) : name};
    weight.kind = kind;
    weight.dtype = tensor.scalar_type();
    DtypeText(weight.dtype);  // rejects dtypes that cannot be written
    weight.shape = tensor.sizes().vec();
    weight.strides = tensor.strides().vec();
    weight.storage_offset = tensor.storage_offset();
    weight.requires_grad = kind == WeightKind::kParameter && tensor.requires_grad();
    weight.persistent = kind != WeightKind::kConstant;
    place_(tensor, weight);
    model_.weights.push_back(weight);
    if (model_.weights.size() > kMostWeights) throw Error(model_.file, "has too many weights");
    return at->second;
  }

  void Classify(Node* node, std::vector<Node*>& reads) {
    if (node->kind() == prim::GetAttr) {
      reads.push_back(node);
    } else if (node->kind() == prim::SetAttr) {
      std::string path;
      if (!objects_.PathOf(node->input(0), path)) return;
      const std::string name = (path.empty() ? "" : path + ".") + node->s(c10::attr::name);
      // Uses the value's line if the assignment has none.
      const Node* line = node->sourceRange().source() ? node : node->input(1)->node();
      throw Error(model_.file + ": " + Origin(line),
                  "assigns to the attribute \"" + name + "\" while the model runs",
                  "register it as a buffer and write into it: self." + node->s(c10::attr::name) +
                      ".copy_(value)");
    } else if (node->kind() == prim::Constant && node->hasAttribute(c10::attr::value) &&
               node->output()->type()->isSubtypeOf(*c10::TensorType::get())) {
      reads.push_back(node);
    }
  }

  bool IsTraining(Node* node) {
    std::string path;
    return node->kind() == prim::GetAttr && node->s(c10::attr::name) == "training" &&
           objects_.PathOf(node->input(), path) && objects_.At(path)->type()->is_module();
  }

  // Returns the value that the node yields, or nothing for submodules and the training flag.
  std::optional<at::IValue> Read(Node* node) {
    if (node->kind() == prim::Constant) return torch::jit::toIValue(node->output());
    if (IsTraining(node)) return std::nullopt;
    std::string path;
    if (!objects_.PathOf(node->input(), path)) {
      throw Error(model_.file + ": " + Origin(node),
                  "reads an attribute of an object that is made while the model runs",
                  "keep it in local variables");
    }
    at::IValue value = objects_.At(path)->getAttr(node->s(c10::attr::name));
    if (value.isObject()) return std::nullopt;
    CollectTensors(value, (path.empty() ? "" : path + ".") + node->s(c10::attr::name));
    return value;
  }

  // Makes tensors that are neither parameters nor buffers weights of kind constant.
  void CollectTensors(const at::IValue& value, const std::string& root) {
    std::vector<std::pair<at::IValue, std::string>> todo = {{value, root}};
    while (!todo.empty()) {
      auto [item, name] = todo.back();
      todo.pop_back();
      auto below = [&](const std::string& part) {
        return name.empty() ? std::string() : name + "." + part;
      };
      if (item.isTensor()) {
        if (item.toTensor().defined()) AddWeight(item.toTensor(), name, WeightKind::kConstant);
      } else if (item.isTuple()) {
        const auto& elements = item.toTupleRef().elements();
        for (size_t i = elements.size(); i-- > 0;)
          todo.emplace_back(elements[i], below(std::to_string(i)));
      } else if (item.isList()) {
        auto list = item.toListRef();
        for (size_t i = list.size(); i-- > 0;) todo.emplace_back(list[i], below(std::to_string(i)));
      } else if (item.isGenericDict()) {
        for (const auto& entry : item.toGenericDict())
          todo.emplace_back(entry.value(),
                            below(entry.key().isString() ? entry.key().toStringRef() : "key"));
      }
    }
  }

  // Creates `value` before `at` from weights and constants.
  Value* Make(const at::IValue& value, int depth = 0) {
    if (value.isTensor()) {
      const size_t index = index_of_.at(KeyOf(value.toTensor()));
      Value* weight = model_.weight_input(index);
      // A buffer that shares a parameter's memory passes no gradient to the parameter.
      const bool apart = model_.weights[index].requires_grad && !value.toTensor().requires_grad();
      return apart ? graph_.insert(c10::aten::detach, {weight}) : weight;
    }
    if (!HoldsTensors(value) || depth > 20) {
      auto made = torch::jit::tryInsertConstant(graph_, value);
      if (!made)
        throw Error(model_.file,
                    "holds an attribute of type " + value.type()->str() +
                        ", which cannot be written in a module's code",
                    "keep tensors, numbers, strings, lists and dicts of them");
      return *made;
    }
    if (value.isTuple()) {
      std::vector<Value*> parts;
      for (const at::IValue& item : value.toTupleRef().elements())
        parts.push_back(Make(item, depth + 1));
      return graph_.insertNode(graph_.createTuple(parts))->output();
    }
    if (value.isList()) {
      c10::TypePtr element = value.type()->expect<c10::ListType>()->getElementType();
      std::vector<Value*> parts;
      for (const at::IValue& item : value.toListRef()) parts.push_back(Make(item, depth + 1));
      return graph_.insertNode(graph_.createList(element, parts))->output();
    }
    auto dict = value.toGenericDict();
    std::vector<Value*> keys, values;
    for (const auto& entry : dict) {
      keys.push_back(Make(entry.key(), depth + 1));
      values.push_back(Make(entry.value(), depth + 1));
    }
    return graph_.insertNode(graph_.createDict(dict.keyType(), dict.valueType(), keys, values))
        ->output();
  }

  static bool HoldsTensors(const at::IValue& value) {
    std::vector<at::IValue> todo = {value};
    while (!todo.empty()) {
      at::IValue item = todo.back();
      todo.pop_back();
      if (item.isTensor()) return true;
      if (item.isTuple())
        for (const at::IValue& part : item.toTupleRef().elements()) todo.push_back(part);
      if (item.isList())
        for (const at::IValue& part : item.toListRef()) todo.push_back(part);
      if (item.isGenericDict())
        for (const auto& entry : item.toGenericDict()) todo.push_back(entry.value());
    }
    return false;
  }

  void Replace(Value* output, const at::IValue& value) {
    torch::jit::WithInsertPoint before(output->node());
    Value* made = Make(value);
    if (made->node()->kind() != prim::Param) made->node()->copyMetadata(output->node());
    output->replaceAllUsesWith(made);
  }

  // Replaces a flag that is true by the module's `training`. A flag that is false while others are
  // true belongs to a frozen layer.
  void ReplaceTraining(Node* node) {
    std::string path;
    objects_.PathOf(node->input(), path);
    bool flag = objects_.At(path)->getAttr("training").toBool();
    torch::jit::WithInsertPoint before(node);
    Value* made = flag ? model_.training() : graph_.insertConstant(false);
    node->output()->replaceAllUsesWith(made);
  }

  // Later reads use the output of earlier ones.
  static void DropReads(const std::vector<Node*>& reads) {
    for (auto node = reads.rbegin(); node != reads.rend(); ++node)
      if (!(*node)->hasUses()) (*node)->destroy();
  }

  Model& model_;
  torch::jit::Graph& graph_;
  ObjectTree& objects_;
  const WeightSink& place_;
  int constants_ = 0;
  std::map<Key, size_t> index_of_;
};

}  // namespace

void ResolveAttributes(Model& model, ObjectTree& objects, const WeightSink& place) {
  Resolver(model, objects, place).Run();
}

}  // namespace pipewright
