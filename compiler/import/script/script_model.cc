// Imports TorchScript archives of torch.jit.save, traced or scripted.
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "compiler/import/script/script_graph.h"
#include "compiler/import/script/script_model.h"
#include "passes/dead_code.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

// Binds arguments with a default value to it, unless the caller names them as inputs.
void BindInputs(Model& model, const c10::FunctionSchema& schema,
                const std::vector<std::string>& wanted) {
  torch::jit::Graph& graph = *model.graph;
  std::vector<std::string> names;
  for (size_t i = 1; i < schema.arguments().size(); ++i)
    names.push_back(schema.arguments()[i].name());
  for (const std::string& name : wanted)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Error("--input-names " + name, "the model has no such input" + Suggest(name, names),
                  "its inputs: " + Join(names, ", "));
  auto given = [&](const std::string& name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  torch::jit::WithInsertPoint start(*graph.nodes().begin());
  for (size_t i = schema.arguments().size(); i-- > 1;) {
    const c10::Argument& argument = schema.arguments()[i];
    Value* input = graph.inputs()[model.first_input() + i - 1];
    bool keep = wanted.empty() ? !argument.default_value() : given(argument.name());
    if (!keep) {
      if (!argument.default_value())
        throw Error("--input-names " + Join(wanted, ","),
                    "the model also needs \"" + argument.name() + "\", which has no default");
      auto constant = torch::jit::tryInsertConstant(graph, *argument.default_value());
      if (!constant)
        throw Error(model.file,
                    "input \"" + argument.name() + "\" has a default of type " +
                        argument.type()->str() + ", which cannot be stored as a constant",
                    "name it: --input-names " + Join(names, ","));
      if (argument.default_value()->isNone()) (*constant)->setType(c10::NoneType::get());
      input->replaceAllUsesWith(*constant);
      graph.eraseInput(model.first_input() + i - 1);
      continue;
    }
    input->setDebugName(argument.name());
    // An input that is given is not None.
    if (auto optional = input->type()->cast<c10::OptionalType>())
      input->setType(optional->getElementType());
  }
}

// Returns the fixed element of a list, tuple or dict that `node` takes, as a name; nothing if it is
// not fixed.
std::optional<std::string> ElementOf(const Node* node) {
  if (node->kind() != c10::aten::__getitem__ && node->kind() != prim::TupleIndex)
    return std::nullopt;
  auto key = torch::jit::toIValue(node->input(1));
  if (key && key->isString()) return key->toStringRef();
  if (key && key->isInt() && key->toInt() >= 0 && key->toInt() < 10'000)
    return std::to_string(key->toInt());
  return std::nullopt;
}

// Replaces a list, tuple or dict from which the model takes fixed elements by separate inputs, in
// order: xs_0, xs_1, or table_key. Others stay and are rejected.
void SpreadInputs(Model& model) {
  torch::jit::Graph& graph = *model.graph;
  for (size_t i = model.first_input(); i < graph.inputs().size();) {
    Value* whole = graph.inputs()[i];
    const auto kind = whole->type()->kind();
    const auto parts = whole->type()->containedTypes();
    const bool tuple = kind == c10::TypeKind::TupleType, list = kind == c10::TypeKind::ListType;
    if (!tuple && !list && kind != c10::TypeKind::DictType) {
      ++i;
      continue;
    }
    std::vector<std::string> names;
    size_t count = tuple ? parts.size() : 0;
    bool fixed = tuple || whole->hasUses();
    for (const auto& use : whole->uses()) {
      auto element = ElementOf(use.user);
      if (use.user->kind() == prim::ListUnpack || use.user->kind() == prim::TupleUnpack)
        count = std::max(count, use.user->outputs().size());
      else if (!element)
        fixed = false;
      else if (!tuple && !list)
        names.push_back(*element);
      else
        count = std::max<size_t>(count, std::stoul(*element) + 1);
    }
    if (!fixed) {
      ++i;
      continue;
    }
    for (size_t k = 0; k < count; ++k) names.push_back(std::to_string(k));
    if (!tuple && !list) {
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
    }
    std::set<std::string> taken;
    for (const Value* input : graph.inputs()) taken.insert(input->debugName());
    std::map<std::string, Value*> made;
    for (size_t k = 0; k < names.size(); ++k) {
      std::string name = Identifier(whole->debugName() + "_" + names[k]);
      while (!taken.insert(name).second) name += "_";
      Value* input = graph.insertInput(i + 1 + k);
      input->setType(tuple ? parts[k] : parts.back());
      input->setDebugName(name);
      made[names[k]] = input;
    }
    while (whole->hasUses()) {
      Node* user = whole->uses()[0].user;
      if (auto element = ElementOf(user))
        user->output()->replaceAllUsesWith(made.at(*element));
      else
        for (size_t k = 0; k < user->outputs().size(); ++k)
          user->outputs()[k]->replaceAllUsesWith(made.at(std::to_string(k)));
      user->destroy();
    }
    graph.eraseInput(i);
  }
}

void CheckInputs(const Model& model) {
  for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i) {
    const Value* input = model.graph->inputs()[i];
    auto kind = input->type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::IntType &&
        kind != c10::TypeKind::FloatType && kind != c10::TypeKind::BoolType)
      throw Error(model.file,
                  "input \"" + input->debugName() + "\" is a " + input->type()->annotation_str() +
                      ", and the model uses more than fixed elements of it: a run cannot feed it",
                  "wrap the model in one that takes tensors");
  }
}

// Replaces returned lists and dicts by separate outputs, in order. Returns names for those with a
// key on the path to them: "aux.a" for {"aux": {"a": y}}.
std::map<Value*, std::string> FlattenOutputs(Model& model) {
  torch::jit::Graph& graph = *model.graph;
  torch::jit::AliasDb aliases(model.graph);
  struct Place {
    Value* value;
    std::string path;
    bool keyed;
  };
  std::vector<Place> todo;  // a stack: the next one is last
  for (size_t i = graph.outputs().size(); i-- > 0;) todo.push_back({graph.outputs()[i], "", false});
  std::vector<Value*> flat;
  std::map<Value*, std::string> names;
  while (!todo.empty()) {
    const Place place = todo.back();
    Value* value = place.value;
    todo.pop_back();
    Node* node = value->node();
    auto kind = value->type()->kind();
    bool holds = kind == c10::TypeKind::ListType || kind == c10::TypeKind::DictType ||
                 kind == c10::TypeKind::TupleType;
    bool grows = holds && kind != c10::TypeKind::TupleType && aliases.hasWriters(value);
    const std::string before = place.path.empty() ? "" : place.path + ".";
    std::vector<Place> parts;
    if (!grows && (node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct)) {
      for (size_t i = 0; i < node->inputs().size(); ++i)
        parts.push_back({node->inputs()[i], before + std::to_string(i), place.keyed});
    } else if (!grows && node->kind() == prim::DictConstruct) {
      for (size_t i = 1; i < node->inputs().size(); i += 2) {
        const auto key = torch::jit::toIValue(node->inputs()[i - 1]);
        const bool text = key && key->isString();
        parts.push_back({node->inputs()[i], before + (text ? key->toStringRef() : "item"),
                         text || place.keyed});
      }
    } else if (holds && node->kind() != prim::Constant) {
      throw Error(model.file + ": " + Origin(node),
                  "returns a " + value->type()->annotation_str() +
                      " whose length is not known before the run",
                  "return tensors, or tuples, lists and dicts of a fixed length");
    } else {
      flat.push_back(value);
      if (place.keyed && node->kind() != prim::Param) names.emplace(value, place.path);
    }
    todo.insert(todo.end(), parts.rbegin(), parts.rend());
  }
  while (!graph.outputs().empty()) graph.eraseOutput(0);
  for (Value* value : flat) graph.registerOutput(value);
  return names;
}

// Chooses unique identifiers: names from `outputs`, the model's own names if the file keeps them,
// or the operation's.
void NameValues(Model& model, const std::map<Value*, std::string>& outputs) {
  torch::jit::Graph& graph = *model.graph;
  std::set<std::string> taken;
  std::set<Value*> done;
  std::vector<std::pair<Value*, std::string>> names;
  auto name = [&](Value* value, const std::string& wanted) {
    std::string unique = wanted;
    for (int k = 1; !taken.insert(unique).second; ++k) unique = wanted + "_" + std::to_string(k);
    names.emplace_back(value, unique);
    model.stems[unique] = wanted;
  };
  auto own = [](const Value* value) {
    std::string base = value->hasDebugName() ? value->debugNameBase() : "";
    bool plain =
        base.empty() || base[0] == '_' || std::isdigit(static_cast<unsigned char>(base[0]));
    return plain ? std::string() : Identifier(base);
  };
  for (size_t i = model.first_input(); i < graph.inputs().size(); ++i)
    name(graph.inputs()[i], Identifier(graph.inputs()[i]->debugName()));
  for (size_t i = 0; i < model.weights.size(); ++i)
    name(graph.inputs()[i], Identifier(model.weights[i].names[0]));
  name(model.training(), "self_training");
  name(model.device(), "self_device");
  for (Value* value : graph.outputs())
    if (auto key = outputs.find(value); key != outputs.end() && done.insert(value).second)
      name(value, Identifier(key->second));
  for (Node* node : AllNodes(graph)) {
    for (torch::jit::Block* block : node->blocks())
      for (Value* input : block->inputs()) name(input, own(input).empty() ? "item" : own(input));
    for (Value* output : node->outputs()) {
      if (done.count(output)) continue;
      std::string wanted = own(output);
      if (wanted.empty() && node->kind() != prim::Constant)
        wanted = Identifier(node->kind().toUnqualString());
      if (!wanted.empty()) name(output, wanted);
    }
  }
  for (auto& [value, unique] : names)
    if (value->hasDebugName()) value->setDebugName("");
  for (auto& [value, unique] : names) value->setDebugName(unique);
}

}  // namespace

// Replaces constant lists of tensors by lists of constant tensors.
static void TakeListsApart(torch::jit::Graph& graph) {
  for (Node* node : AllNodes(graph)) {
    if (node->kind() != prim::Constant) continue;
    const auto type = node->output()->type()->cast<c10::ListType>();
    const auto value = torch::jit::toIValue(node->output());
    if (!type || !value || !value->isList()) continue;
    const c10::List<c10::IValue> items = value->toList();
    if (std::none_of(items.begin(), items.end(),
                     [](const c10::IValue& item) { return item.isTensor(); }))
      continue;
    torch::jit::WithInsertPoint before(node);
    std::vector<Value*> values;
    for (const c10::IValue& item : items) values.push_back(graph.insertConstant(item));
    Node* list = graph.insertNode(graph.createList(type->getElementType(), values));
    list->copyMetadata(node);
    node->output()->replaceAllUsesWith(list->output());
    node->destroy();
  }
}

// Makes tensors from constant folding weights of kind constant, in memory.
static void LiftConstants(Model& model) {
  TakeListsApart(*model.graph);
  std::map<const void*, Value*> lifted;
  for (Node* node : AllNodes(*model.graph)) {
    if (node->kind() != prim::Constant || !node->output()->type()->cast<c10::TensorType>() ||
        !node->hasAttribute(c10::attr::value))
      continue;
    at::Tensor tensor = torch::jit::toIValue(node->output())->toTensor();
    Value*& input = lifted[tensor.unsafeGetTensorImpl()];
    if (!input) {
      Weight weight;
      weight.names = {"folded." + std::to_string(lifted.size() - 1)};
      weight.kind = WeightKind::kConstant;
      weight.persistent = false;
      weight.dtype = tensor.scalar_type();
      weight.data = tensor.detach().contiguous();
      weight.shape = weight.data.sizes().vec();
      weight.strides = weight.data.strides().vec();
      weight.file_bytes = weight.data.nbytes();
      input = model.graph->insertInput(model.weights.size());
      input->setType(c10::TensorType::get());
      model.weights.push_back(weight);
    }
    node->output()->replaceAllUsesWith(input);
    node->destroy();
  }
}

void FinishScript(Model& model) {
  SimplifyScript(model.graph);
  LiftConstants(model);
  const std::map<Value*, std::string> outputs = FlattenOutputs(model);
  RemoveDeadCode(*model.graph);
  CheckInputs(model);
  model.markers_dropped = true;
  for (const Node* node : AllNodes(*model.graph))
    if (IsMarker(node)) model.markers_dropped = false;
  NameValues(model, outputs);
  model.graph->lint();
}

Model ImportScript(const Archive& archive, const std::vector<std::string>& inputs) {
  Model model;
  model.file = archive.path();
  model.files = {archive.path()};
  try {
    ScriptArchive script = OpenScript(archive);
    ObjectTree objects(script.module);
    auto forward = script.module.find_method("forward");
    if (!forward)
      throw Error(archive.path(), "the module has no method forward",
                  "save a module whose forward is the model");
    model.graph = torch::jit::toGraphFunction(forward->function()).graph()->copy();
    InlineCalls(*model.graph, objects, model.file);
    ReplaceContexts(*model.graph, model.file);
    ResolveAttributes(model, objects, [&](const at::Tensor& tensor, Weight& weight) {
      weight.file_offset = StorageOffset(script, tensor, weight.names[0]);
      weight.file_bytes = tensor.numel() ? tensor.storage().nbytes() : 0;
    });
    BindInputs(model, forward->function().getSchema(), inputs);
    SpreadInputs(model);
    FinishScript(model);
  } catch (const torch::jit::ErrorReport& e) {
    throw Error(archive.path(), std::string("its code cannot be read: ") + e.what());
  } catch (const c10::Error& e) {
    throw Error(
        archive.path(), std::string("cannot be read: ") + e.what_without_backtrace(),
        "check that torch.jit.load reads the file and that its forward runs; then report it "
        "with the file");
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // errors of LibTorch's parser
    throw Error(archive.path(), std::string("its code cannot be read: ") + e.what());
  }
  return model;
}

}  // namespace pipewright
