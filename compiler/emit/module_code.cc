#include "compiler/emit/module_code.h"

#include <torch/csrc/jit/serialization/python_print.h>

#include <map>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "base/torch_error.h"
#include "compiler/emit/annotate.h"
#include "compiler/emit/named_constants.h"
#include "ops/module_text.h"
#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

// Returns "blocks.0.fc|model.py:31|x = self.fc(x)"; each part may be empty.
std::string PlaceText(Node* node) {
  std::vector<std::string> stack = ModuleStack(node);
  std::string text = stack.empty() ? "" : stack.back();
  auto range = node->sourceRange();
  if (!range.source() || !range.source()->filename()) return text + "||";
  const std::string& file = *range.source()->filename();
  return text + "|" + file.substr(file.rfind('/') + 1) + ":" +
         std::to_string(range.source()->starting_line_no()) + "|" + range.text().str();
}

// Returns true for Python's builtins: local variables must not hide them from edited code.
bool IsBuiltin(const std::string& name) {
  static const std::set<std::string> kBuiltins = {
      "abs",        "aiter",     "all",      "any",        "anext",     "ascii",     "bin",
      "breakpoint", "bytearray", "bytes",    "callable",   "classmethod", "compile", "copyright",
      "credits",    "delattr",   "dict",     "dir",        "divmod",    "enumerate", "eval",
      "exec",       "exit",      "filter",   "format",     "frozenset", "globals",   "hash",
      "help",       "id",        "input",    "issubclass", "iter",      "license",   "locals",
      "map",        "memoryview", "next",    "object",     "open",      "pow",       "property",
      "quit",       "repr",      "reversed", "set",        "setattr",   "staticmethod", "sum",
      "super",      "tuple",     "type",     "vars"};
  return kBuiltins.count(name) > 0;
}

// Makes a separate graph of the body; `self` has its weights.
class BodyWriter {
 public:
  BodyWriter(const Model& model, const ModuleBody& body, int index)
      : model_(model), body_(body), module_("__torch__.Module" + std::to_string(index)) {}

  torch::jit::Module Write() {
    Reserve();
    module_.register_attribute("training", c10::BoolType::get(), true);
    if (body_.uses_device)
      module_.register_attribute("device", c10::DeviceObjType::get(), c10::Device(c10::kCPU));
    for (const auto& [weight, name] : body_.weights) {
      CheckName(weight, name);
      // Only its type is printed.
      if (model_.weights[weight].kind == WeightKind::kParameter)
        module_.register_parameter(name, at::empty({0}), false);
      else
        module_.register_buffer(name, at::empty({0}));
      attribute_[model_.weight_input(weight)] = name;
    }
    attribute_[model_.training()] = "training";
    attribute_[model_.device()] = "device";
    self_ = graph_->addInput("self");
    self_->setType(module_.type());
    for (Value* input : body_.inputs) {
      Value* made = graph_->addInput();
      made->setType(input->type());
      made->setDebugName(input->debugName());
      made_[input] = made;
    }
    for (Node* node : body_.nodes) Clone(node);
    std::vector<Value*> outputs;
    for (Value* output : body_.outputs) outputs.push_back(made_.at(output));
    NameLocals();
    for (Node* node : body_.nodes) Note(node);
    if (outputs.size() == 1)
      graph_->registerOutput(outputs[0]);
    else
      graph_->registerOutput(graph_->insertNode(graph_->createTuple(outputs))->output());
    graph_->lint();
    auto function = module_._ivalue()->compilation_unit()->create_function(
        c10::QualifiedName(*module_.type()->name(), "forward"), graph_);
    module_.type()->addMethod(function);
    return module_;
  }

  // Returns the comments for the lines of values, by name.
  const std::map<std::string, std::string>& notes() const { return notes_; }

 private:
  // Throws Error for names that TorchScript code cannot express.
  void CheckName(size_t weight, const std::string& name) const {
    static const std::set<std::string> kReserved = {
        "None",    "True",     "False",  "and",      "as",   "assert", "break",
        "class",   "continue", "def",    "del",      "elif", "else",   "for",
        "from",    "if",       "import", "in",       "is",   "not",    "or",
        "pass",    "raise",    "return", "while",    "with", "yield",  "except",
        "finally", "global",   "lambda", "nonlocal", "try",  "async",  "await"};
    bool plain = !kReserved.count(name);
    for (char c : name) plain = plain && c >= ' ' && c <= '~' && c != '"' && c != '\\';
    if (!plain)
      throw Error(
          model_.file + ": weight " + Quote(name) + UserText(body_, model_.weight_input(weight)),
          "the code of a module cannot name it",
          "rename it in the model: a name that is not a Python keyword, without quotes, "
          "backslashes and letters beyond ASCII");
  }

  void Reserve() {
    for (Value* input : body_.inputs) names_.insert(input->debugName());
    for (Node* node : body_.nodes)
      for (Value* output : node->outputs())
        if (output->hasDebugName()) names_.insert(output->debugName());
  }

  // Returns the comment above the node's line, in the form that the printer keeps for each line.
  torch::jit::SourceRange Place(Node* node) {
    const std::string place = PlaceText(node);
    if (place.empty() || node->kind() == torch::jit::prim::Constant) return place_;
    auto source = std::make_shared<torch::jit::Source>(place);
    return torch::jit::SourceRange(source, 0, place.size());
  }

  // Returns the clone of `value`; reads an attribute just before its first use.
  Value* Resolve(Value* value) {
    auto found = made_.find(value);
    if (found != made_.end()) return found->second;
    auto attribute = attribute_.find(value);
    if (attribute == attribute_.end()) return nullptr;  // inside a block
    Value* made = graph_->insertGetAttr(self_, attribute->second);
    made->node()->setSourceRange(place_);
    std::string name = Identifier(attribute->second);
    while (!names_.insert(name).second) name += "_";
    made->setDebugName(name);
    return made_[value] = made;
  }

  void Clone(Node* node) {
    const ErrorContext here(node);
    place_ = Place(node);
    // Uses inside blocks need their attributes before the block.
    for (Node* inner : WithInner(node))
      for (Value* input : inner->inputs()) Resolve(input);
    Node* clone = graph_->createClone(node, [&](Value* value) { return Resolve(value); });
    graph_->insertNode(clone);
    place_ = Place(node);
    clone->setSourceRange(place_);
    for (size_t i = 0; i < node->outputs().size(); ++i)
      made_[node->outputs()[i]] = clone->outputs()[i];
  }

  // Renumbers local values, which do not leave the module: x, x_1 instead of x_37.
  void NameLocals() {
    std::set<std::string> taken;
    std::vector<Value*> locals;
    auto sort = [&](Value* value) {
      if (!value->hasDebugName()) return;
      const bool local = model_.stems.count(value->debugName());
      if (local)
        locals.push_back(value);
      else
        taken.insert(value->debugName());
    };
    for (Node* node : AllNodes(*graph_)) {
      for (Value* output : node->outputs()) sort(output);
      for (torch::jit::Block* block : node->blocks())
        for (Value* input : block->inputs()) sort(input);
    }
    for (const std::vector<Value*>& kept : {body_.inputs, body_.outputs})
      for (const Value* value : kept) {
        taken.insert(value->debugName());
        std::erase(locals, made_.at(value));
      }
    std::vector<std::string> names;
    for (Value* value : locals) {
      std::string stem = model_.stems.at(value->debugName());
      if (IsBuiltin(stem)) stem += "_";
      std::string name = stem;
      for (int& k = numbers_[stem]; !taken.insert(name).second;)
        name = stem + (stem.back() == '_' ? "" : "_") + std::to_string(++k);
      names.push_back(name);
      value->setDebugName("");
    }
    for (size_t i = 0; i < locals.size(); ++i) locals[i]->setDebugName(names[i]);
  }

  // Notes the result's sizes if they differ from those of its first tensor input.
  void Note(Node* node) {
    const ValueMeta* made = node->outputs().size() == 1 ? model_.MetaOf(node->output()) : nullptr;
    if (!made || node->output()->type()->kind() != c10::TypeKind::TensorType) return;
    for (const Value* input : node->inputs())
      if (input->type()->kind() == c10::TypeKind::TensorType) {
        const ValueMeta* given = model_.MetaOf(input);
        if (!given || given->shape == made->shape) return;
        break;
      }
    notes_[made_.at(node->output())->debugName()] = "[" + Join(made->shape, ", ") + "]";
  }

  const Model& model_;
  const ModuleBody& body_;
  std::map<std::string, std::string> notes_;
  torch::jit::Module module_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  Value* self_ = nullptr;
  torch::jit::SourceRange place_;
  std::unordered_map<const Value*, Value*> made_;
  std::unordered_map<const Value*, std::string> attribute_;
  std::set<std::string> names_;
  std::map<std::string, int> numbers_;
};

// Throws Error unless `text` compiles to the same operations as `plain`, the printer's own code.
void CheckCompiles(const std::string& text, const std::string& plain, const ModuleBody& body,
                   const std::string& model, int index) {
  const std::string name = "Module" + std::to_string(index);
  const std::string file = "module" + std::to_string(index) + ".py";
  std::vector<std::string> weights;
  for (const auto& [weight, held] : body.weights) weights.push_back(held);
  auto graph = [&](const std::string& code) {
    const CompiledText compiled = CompileText(file, code, name, weights);
    return torch::jit::toGraphFunction(*compiled.forward).graph();
  };
  auto place = [&](const std::string& told) {
    const std::string line = ModelLine(text, file, told);
    return model + ": " + file + (line.empty() ? "" : ", " + line);
  };
  std::shared_ptr<Graph> made;
  try {
    made = graph(text);
  } catch (const std::exception& e) {
    const std::string what = WithoutBacktrace(e.what());
    throw Error(place(what),
                "the code that was made does not compile: " + what,
                "write that line of the model with other operations; and report it with the "
                "model: this is a fault of pipewright");
  }
  if (const Node* node = FirstDifference(*made, *graph(plain)))
    throw Error(place(node->sourceRange().str()) + ", " + node->kind().toQualString(),
                "with names in the code, it compiles to other operations",
                "write that line of the model with other operations; and report it with the "
                "model: this is a fault of pipewright");
}

}  // namespace

static std::string ValueText(const Model& model, const Value* value) {
  const ValueMeta* meta = model.MetaOf(value);
  if (value->type()->kind() != c10::TypeKind::TensorType || !meta)
    return value->debugName() + ": " + value->type()->annotation_str();
  return value->debugName() + ": " + DtypeText(meta->dtype) + " [" + Join(meta->shape, ", ") + "]";
}

// Returns the comment at the head of a module: its inputs, outputs and weights.
static std::string Head(const Model& model, const ModuleBody& body, int index) {
  std::string text =
      "# Module " + std::to_string(index) + " of " + model.file.substr(model.file.rfind('/') + 1);
  std::vector<std::string> covers = body.covers;
  size_t more = covers.size() > 8 ? covers.size() - 8 : 0;
  covers.resize(covers.size() - more);
  if (!covers.empty()) text += ": " + Join(covers, ", ");
  if (more) text += " and " + std::to_string(more) + " more";
  text += "\n# TorchScript: this text is what runs. Change it freely, but keep what enters and what "
          "leaves.\n";
  for (const Value* input : body.inputs) text += "#   in   " + ValueText(model, input) + "\n";
  for (const Value* output : body.outputs) text += "#   out  " + ValueText(model, output) + "\n";
  for (const auto& [held, name] : body.weights) {
    const Weight& weight = model.weights[held];
    text += std::string("#   ") + ToText(weight.kind) + "  " + name + ": " +
            DtypeText(weight.dtype) + " " + ShapeText(weight.shape) + "\n";
  }
  return text;
}

// The code as LibTorch prints it.
struct Printed {
  std::string text;
  torch::jit::SourceRangeRecords ranges;
  std::map<std::string, std::string> notes;
  std::vector<c10::IValue> constants;
};

static Printed Print(const Model& model, const ModuleBody& body, int index) {
  Printed printed;
  BodyWriter writer(model, body, index);
  torch::jit::Module module = writer.Write();
  MarkConstants(*module.get_method("forward").graph());
  torch::jit::PrintDepsTable needed;
  torch::jit::PythonPrint printer(printed.constants, needed, nullptr, /*enforce_importable=*/true);
  printer.printNamedType(module.type());
  printed.text = printer.str();
  printed.ranges = printer.ranges();
  printed.notes = writer.notes();
  return printed;
}

// Returns the operation that makes the body unprintable: the last one of the shortest prefix that
// cannot be printed. Returns nullptr for an empty body.
static const Node* FirstUnprinted(const Model& model, ModuleBody body, int index) {
  const std::vector<Node*> nodes = body.nodes;
  body.outputs.clear();
  size_t good = 0, bad = nodes.size();
  while (bad - good > 1) {
    const size_t middle = (good + bad) / 2;
    body.nodes.assign(nodes.begin(), nodes.begin() + static_cast<long>(middle));
    try {
      Print(model, body, index);
      good = middle;
    } catch (const std::exception&) {
      bad = middle;
    }
  }
  return bad > 0 ? nodes[bad - 1] : nullptr;
}

// Returns UserText of the first constant of that kind.
static std::string ConstantsUser(const ModuleBody& body, const std::string& kind) {
  for (Node* node : body.nodes)
    for (const Node* inner : WithInner(node))
      for (const Value* input : inner->inputs())
        if (const auto constant = torch::jit::toIValue(input);
            constant && constant->tagKind() == kind)
          return UserText(body, input);
  return "";
}

std::string ModuleCode(const Model& model, const ModuleBody& body, int index) {
  Printed printed;
  try {
    printed = Print(model, body, index);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    const Node* node = FirstUnprinted(model, body, index);
    throw Error(model.file + ": " +
                    (node ? node->kind().toQualString() + std::string(", ") + Origin(node)
                          : "module " + std::to_string(index)),
                "LibTorch cannot write it as code: " + WithoutBacktrace(e.what()),
                "write that line of the model with other operations");
  }
  const std::vector<c10::IValue>& constants = printed.constants;
  std::string text = Head(model, body, index) +
                     NameConstants(AnnotateCode(printed.text, printed.ranges, printed.notes));
  std::string plain = NumberConstants(printed.text);
  if (body.outputs.size() == 1)
    for (std::string* code : {&text, &plain}) NameResult(*code, body.outputs[0]->debugName());
  if (!constants.empty())
    throw Error(
        model.file + ": module " + std::to_string(index) +
            ConstantsUser(body, constants[0].tagKind()),
        "holds a constant that cannot be written as text (a " + constants[0].tagKind() + ")",
        "register it as a buffer of the model");
  CheckCompiles(text, plain, body, model.file, index);
  return text;
}

}  // namespace pipewright
