#include "passes/graph/model.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"

namespace pipewright {

const ValueMeta* Model::MetaOf(const torch::jit::Value* value) const {
  auto found = meta.find(value->debugName());
  return found == meta.end() ? nullptr : &found->second;
}

bool Model::IsWeight(const torch::jit::Value* value) const {
  return value->node()->kind() == torch::jit::prim::Param && value->offset() < weights.size() &&
         value == weight_input(value->offset());
}

std::optional<ValueMeta> Model::TensorOf(const torch::jit::Value* value) const {
  if (!IsWeight(value)) {
    const ValueMeta* known = MetaOf(value);
    return known ? std::optional(*known) : std::nullopt;
  }
  const Weight& weight = weights[value->offset()];
  ValueMeta made;
  made.dtype = weight.dtype;
  for (int64_t size : weight.shape) made.shape.push_back(std::to_string(size));
  return made;
}

std::vector<torch::jit::Node*> WithInner(torch::jit::Node* top) {
  std::vector<torch::jit::Node*> all = {top};
  for (size_t i = 0; i < all.size(); ++i)
    for (torch::jit::Block* block : all[i]->blocks()) {
      for (torch::jit::Node* inner : block->nodes()) all.push_back(inner);
      all.push_back(block->return_node());
    }
  return all;
}

torch::jit::Value* InputOf(torch::jit::Node* node, const char* name) {
  auto index = node->schema().argumentIndexWithName(name);
  return index ? node->inputs()[static_cast<size_t>(*index)] : nullptr;
}

bool IsMarker(const torch::jit::Node* node) {
  static const c10::Symbol kExported = c10::Symbol::fromQualString("pippy::_pipe_split");
  static const c10::Symbol kScripted = c10::Symbol::fromQualString("pipewright::pipe_split");
  return node->kind() == kExported || node->kind() == kScripted;
}

torch::jit::Node* FirstFrom(torch::jit::Node* node) {
  while (node->kind() == torch::jit::prim::Return) {
    torch::jit::Block* block = node->owningBlock();
    torch::jit::Node* owner = block->owningNode();
    if (!owner) return nullptr;
    size_t index = 0;
    while (owner->blocks()[index] != block) ++index;
    node = index + 1 < owner->blocks().size() ? *owner->blocks()[index + 1]->nodes().begin()
                                              : owner->next();
  }
  return node;
}

torch::jit::Node* NextNode(torch::jit::Node* node) {
  return FirstFrom(node->blocks().empty() ? node->next() : *node->blocks()[0]->nodes().begin());
}

std::vector<torch::jit::Node*> AllNodes(torch::jit::Graph& graph) {
  std::vector<torch::jit::Node*> nodes;
  for (auto node = FirstFrom(*graph.nodes().begin()); node; node = NextNode(node))
    nodes.push_back(node);
  return nodes;
}

std::vector<std::string> ModuleStack(const torch::jit::Node* node) {
  std::vector<std::string> stack;
  for (auto scope = const_cast<torch::jit::Node*>(node)->scope();
       scope && !scope->isRoot() && !scope->isBlank(); scope = scope->parent())
    stack.push_back(scope->name().toUnqualString());
  std::reverse(stack.begin(), stack.end());
  return stack;
}

std::string Origin(const torch::jit::Node* node) {
  std::vector<std::string> stack = ModuleStack(node);
  std::string text = stack.empty() ? "the model itself" : "submodule \"" + stack.back() + "\"";
  auto range = node->sourceRange();
  if (range.source() && range.source()->filename())
    text += ", " + *range.source()->filename() + ":" +
            std::to_string(range.source()->starting_line_no());
  return text;
}

std::string DtypeText(at::ScalarType dtype) {
  const std::string name(c10::getDtypeNames(dtype).first);
  const Dtype* known = FindDtype(name);
  // Others are quantized or narrower than a byte. Safetensors lacks some complex types.
  if (known ? known->bits < 8 : !at::isComplexType(dtype))
    throw Error("dtype", name + " is not supported");
  return name;
}

at::ScalarType ScalarTypeOf(const std::string& word) {
  const auto& types = c10::getStringToDtypeMap();
  const auto found = types.find(word);
  if (found == types.end() || DtypeText(found->second) != word)
    throw Error("dtype", "\"" + word + "\" is not supported");
  return found->second;
}

std::string Identifier(const std::string& name) {
  // Python's keywords and names that the printed code uses itself.
  static const std::set<std::string> kTaken = {"CONSTANTS",
                                               "Ellipsis",
                                               "False",
                                               "None",
                                               "NoneType",
                                               "True",
                                               "__torch__",
                                               "and",
                                               "annotate",
                                               "as",
                                               "assert",
                                               "aten",
                                               "async",
                                               "attribute",
                                               "await",
                                               "bool",
                                               "break",
                                               "chr",
                                               "class",
                                               "complex",
                                               "continue",
                                               "def",
                                               "del",
                                               "elif",
                                               "else",
                                               "except",
                                               "finally",
                                               "float",
                                               "for",
                                               "fork",
                                               "from",
                                               "getattr",
                                               "global",
                                               "hasattr",
                                               "hex",
                                               "if",
                                               "import",
                                               "in",
                                               "inf",
                                               "infj",
                                               "int",
                                               "is",
                                               "isinstance",
                                               "lambda",
                                               "len",
                                               "list",
                                               "max",
                                               "min",
                                               "nan",
                                               "nanj",
                                               "nonlocal",
                                               "not",
                                               "oct",
                                               "ops",
                                               "or",
                                               "ord",
                                               "pass",
                                               "print",
                                               "raise",
                                               "range",
                                               "return",
                                               "round",
                                               "self",
                                               "slice",
                                               "sorted",
                                               "str",
                                               "torch",
                                               "try",
                                               "unchecked_cast",
                                               "uninitialized",
                                               "while",
                                               "with",
                                               "yield",
                                               "zip"};
  std::string out;
  for (char c : name) out += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  if (out.empty() || std::isdigit(static_cast<unsigned char>(out[0]))) out = "v" + out;
  // The printer reserves names of the form _0.
  if (out[0] == '_') out = "v" + out;
  if (kTaken.count(out)) out += "_";
  return out;
}

}  // namespace pipewright
