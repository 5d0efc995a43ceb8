#include "compiler/emit/named_constants.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <unordered_map>

#include "ops/module_text.h"
#include "passes/graph/model.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

// A marked constant is kMark + kind * kKind + number. No real size is near it.
constexpr int64_t kMark = 4611686018427000000;
constexpr int64_t kKind = 100000;
const char kPrefix[] = "4611686018427";
const c10::TypeKind kKinds[] = {c10::TypeKind::ScalarTypeType, c10::TypeKind::MemoryFormatType,
                                c10::TypeKind::LayoutType};

std::optional<int64_t> KindOf(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  for (int64_t k = 0; k < std::ssize(kKinds); ++k)
    if (type->kind() == kKinds[k]) return k;
  // In operators that only TorchScript has, a dtype is an int.
  if (argument.name() == "dtype" && type->kind() == c10::TypeKind::IntType) return 0;
  return std::nullopt;
}

bool IsSlice(const Node* node) {
  return node->kind() == c10::aten::slice || node->kind() == c10::Symbol::aten("slice_scatter");
}

std::string Replaced(const std::string& text,
                     const std::function<std::string(int64_t kind, int64_t number)>& written) {
  std::string out;
  size_t at = 0;
  for (size_t mark; (mark = text.find(kPrefix, at)) != std::string::npos;) {
    const int64_t code = std::stoll(text.substr(mark, 19)) - kMark;
    out += text.substr(at, mark - at) + written(code / kKind, code % kKind);
    at = mark + 19;
  }
  return out + text.substr(at);
}

bool SameBits(const void* a, const void* b, size_t size) { return std::memcmp(a, b, size) == 0; }

// Compares bits: printed, numbers that differ in their last digits look alike.
bool SameConstant(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isDouble()) {
    const double x = a.toDouble(), y = b.toDouble();
    return SameBits(&x, &y, sizeof x);
  }
  if (a.isComplexDouble()) {
    const c10::complex<double> x = a.toComplexDouble(), y = b.toComplexDouble();
    return SameBits(&x, &y, sizeof x);
  }
  if (a.isTensor()) {
    const at::Tensor x = a.toTensor(), y = b.toTensor();
    if (!x.defined() || !y.defined()) return x.defined() == y.defined();
    return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
           x.strides() == y.strides() && x.device() == y.device() &&
           SameBits(x.contiguous().data_ptr(), y.contiguous().data_ptr(), x.nbytes());
  }
  auto all = [](const auto& of_a, const auto& of_b) {
    return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), SameConstant);
  };
  if (a.isTuple()) return all(a.toTupleRef().elements(), b.toTupleRef().elements());
  if (a.isList()) return *a.type() == *b.type() && all(a.toListRef().vec(), b.toListRef().vec());
  return c10::str(a) == c10::str(b);
}

// Walks two graphs side by side.
struct Comparison {
  std::unordered_map<const Value*, const Value*> same;
  const Node* different = nullptr;

  bool Values(at::ArrayRef<const Value*> a, at::ArrayRef<const Value*> b) const {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      const auto constant_a = torch::jit::toIValue(a[i]), constant_b = torch::jit::toIValue(b[i]);
      if (constant_a.has_value() != constant_b.has_value()) return false;
      auto found = same.find(a[i]);
      if (constant_a ? !SameConstant(*constant_a, *constant_b)
                     : found == same.end() || found->second != b[i])
        return false;
    }
    return true;
  }

  bool Made(at::ArrayRef<const Value*> a, at::ArrayRef<const Value*> b) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) same[a[i]] = b[i];
    return a.size() == b.size();
  }

  bool Nodes(const Node* a, const Node* b) {
    const bool attribute = a->kind() == torch::jit::prim::GetAttr;
    if (a->kind() != b->kind() || a->maybeSchema() != b->maybeSchema() ||
        a->blocks().size() != b->blocks().size() ||
        (attribute && a->s(torch::jit::attr::name) != b->s(torch::jit::attr::name)) ||
        !Values(a->inputs(), b->inputs()) || !Made(a->outputs(), b->outputs()))
      return false;
    for (size_t i = 0; i < a->blocks().size(); ++i)
      if (!Blocks(a->blocks()[i], b->blocks()[i])) return false;
    return true;
  }

  bool Differ(const Node* node) {
    if (!different) different = node;
    return false;
  }

  bool Blocks(const torch::jit::Block* a, const torch::jit::Block* b) {
    if (!Made(a->inputs(), b->inputs())) return Differ(a->return_node());
    auto next = [](auto at, auto end) {
      while (at != end && at->kind() == torch::jit::prim::Constant) ++at;
      return at;
    };
    auto of_a = next(a->nodes().begin(), a->nodes().end());
    auto of_b = next(b->nodes().begin(), b->nodes().end());
    while (of_a != a->nodes().end() && of_b != b->nodes().end()) {
      if (!Nodes(*of_a, *of_b)) return Differ(*of_a);
      of_a = next(++of_a, a->nodes().end());
      of_b = next(++of_b, b->nodes().end());
    }
    if (of_a != a->nodes().end()) return Differ(*of_a);
    return (of_b == b->nodes().end() && Values(a->outputs(), b->outputs())) ||
           Differ(a->return_node());
  }
};

}  // namespace

const Node* FirstDifference(const torch::jit::Graph& a, const torch::jit::Graph& b) {
  Comparison comparison;
  comparison.Blocks(a.block(), b.block());
  return comparison.different;
}

static void SpellLargeFloat(Node* constant, torch::jit::Graph& graph) {
  const c10::IValue value = *torch::jit::toIValue(constant->output());
  if (!value.isDouble()) return;
  const double number = value.toDouble();
  if (std::abs(number) < 1e10 || std::abs(number) >= 1e17 || number != std::trunc(number)) return;
  torch::jit::WithInsertPoint before(constant);
  Value* integer = graph.insertConstant(static_cast<int64_t>(number));
  constant->output()->replaceAllUsesWith(graph.insert(c10::Symbol::aten("Float"), {integer}));
}

void MarkConstants(torch::jit::Graph& graph) {
  for (Node* node : AllNodes(graph)) {
    if (node->kind() == torch::jit::prim::Constant) SpellLargeFloat(node, graph);
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (!schema || schema->is_vararg()) continue;
    for (size_t i = 0; i < node->inputs().size() && i < schema->arguments().size(); ++i) {
      const auto constant = torch::jit::toIValue(node->input(i));
      if (!constant || !constant->isInt()) continue;
      const int64_t number = constant->toInt();
      const c10::Argument& argument = schema->arguments()[i];
      torch::jit::WithInsertPoint before(node);
      if (const auto kind = KindOf(argument);
          kind && !ConstantName(kKinds[*kind], number).empty())
        node->replaceInput(i, graph.insertConstant(kMark + *kind * kKind + number));
      // None and the largest integer both mean: to the end.
      if (IsSlice(node) && argument.name() == "end" &&
          argument.type()->kind() == c10::TypeKind::OptionalType &&
          number == std::numeric_limits<int64_t>::max())
        node->replaceInput(i, graph.insertConstant(c10::IValue()));
    }
  }
}

std::string NameConstants(const std::string& text) {
  return Replaced(text, [](int64_t kind, int64_t number) {
    return ConstantName(kKinds[kind], number);
  });
}

std::string NumberConstants(const std::string& text) {
  return Replaced(text, [](int64_t, int64_t number) { return std::to_string(number); });
}

}  // namespace pipewright
