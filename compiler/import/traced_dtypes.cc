#include "compiler/import/traced_dtypes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <regex>

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/text.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

struct Words {
  long named = 0;       // times that the line of the model names the dtype itself
  bool others = false;  // the line mentions another dtype, perhaps a tensor's
};

Words WordsOf(const std::string& line, at::ScalarType dtype) {
  static const std::map<at::ScalarType, std::string> kWords = {{at::kFloat, "float32|float"},
                                                               {at::kDouble, "float64|double"},
                                                               {at::kHalf, "float16|half"},
                                                               {at::kBFloat16, "bfloat16"}};
  auto words = kWords.find(dtype);
  if (words == kWords.end()) return {0, true};
  const std::regex named("(dtype\\s*=\\s*)?\\btorch\\.(" + words->second + ")\\b|\\.(" +
                         words->second + ")\\(\\)");
  static const std::regex kOther("dtype|type_as|\\.type\\(|\\.to\\(\\s*(?![^)]*device)[^)\\s]");
  return {std::distance(std::sregex_iterator(line.begin(), line.end(), named),
                        std::sregex_iterator()),
          std::regex_search(std::regex_replace(line, named, ""), kOther)};
}

std::optional<at::ScalarType> RecordedDtype(const Model& model, const Value* value) {
  const ValueMeta* meta = model.MetaOf(value);
  if (meta) return meta->dtype;
  if (value->node() == model.graph->param_node() && value->offset() < model.weights.size())
    return model.weights[value->offset()].dtype;
  return std::nullopt;
}

// torch.export records torch.tensor([0.5, 2]) as a constant with its dtype.
const c10::Symbol kLift = c10::Symbol::aten("lift_fresh_copy");

// Returns the dtype that `node` has as a constant argument of its operator.
std::optional<at::ScalarType> ConstantDtype(const Node* node, std::optional<int> index) {
  if (!index) return std::nullopt;
  auto value = torch::jit::toIValue(node->input(*index));
  if (!value || !value->isInt()) return std::nullopt;
  return static_cast<at::ScalarType>(value->toInt());
}

// Returns true if `number` is one of the limits of T. Unless `named`, only the largest and the
// lowest number count.
template <typename T>
bool IsLimit(double number, bool named) {
  using Limits = std::numeric_limits<T>;
  const double size = std::abs(number);
  return size == static_cast<double>(Limits::max()) ||
         (named && (size == static_cast<double>(Limits::min()) ||
                    size == static_cast<double>(Limits::epsilon())));
}

// Returns true if `number` is among the limits in torch.finfo(dtype), which differ for each dtype.
// `named`: the model's line calls torch.finfo. Elsewhere the small limits of half precision, such
// as 2 ** -7, are ordinary constants.
bool IsLimit(double number, at::ScalarType dtype, bool named) {
  switch (dtype) {
    case at::kDouble: return IsLimit<double>(number, true);
    case at::kFloat: return IsLimit<float>(number, true);
    case at::kHalf: return IsLimit<c10::Half>(number, named);
    case at::kBFloat16: return IsLimit<c10::BFloat16>(number, named);
    default: return false;
  }
}

bool TakesLimit(const Node* node, at::ScalarType dtype) {
  // An operation that LibTorch itself inserted has no line.
  const torch::jit::SourceRange range = node->sourceRange();
  const std::string line = range.source() ? range.text().str() : "";
  const bool named =
      line.find("finfo") != std::string::npos || line.find("eps") != std::string::npos;
  for (const Value* input : node->inputs()) {
    auto value = torch::jit::toIValue(input);
    if (value && value->isDouble() && IsLimit(value->toDouble(), dtype, named)) return true;
  }
  return false;
}

// Returns true if `weight` is one number, which is a limit of its dtype: torch.tensor(limit).
bool HoldsLimit(const Model& model, const Weight& weight) {
  if (weight.dtype != at::kFloat && weight.dtype != at::kDouble) return false;
  at::Tensor number = weight.data;
  if (!number.defined()) {
    number = at::empty({}, weight.dtype);
    MappedFile(model.files.at(static_cast<size_t>(weight.file)))
        .Read(weight.file_offset + static_cast<uint64_t>(weight.storage_offset) *
                                       c10::elementSize(weight.dtype),
              static_cast<char*>(number.data_ptr()), number.nbytes());
  }
  return IsLimit(number.item<double>(), weight.dtype, true);
}

// Returns true if the line itself calls the function that recorded `node`, rather than a function
// that calls it.
bool CallsIt(const std::string& line, const Node* node) {
  // By operator: the functions of torch that record it, also after run_decompositions().
  static const std::map<std::string, std::string> kCalls = {
      {"lift_fresh_copy", "tensor"},
      {"linalg_vector_norm", "norm|vector_norm"},
      {"linalg_matrix_norm", "norm|matrix_norm"},
      {"full", "full|zeros|ones|new_full|new_zeros|new_ones"},
      {"full_like", "full_like|zeros_like|ones_like"},
      {"softmax", "softmax|softmin"},
      {"_softmax", "softmax|softmin"},
      {"_log_softmax", "log_softmax"},
      {"to", "float|double|half|bfloat16|to|type"},
      {"_to_copy", "float|double|half|bfloat16|to|type"}};
  const std::string name = node->kind().toUnqualString();
  auto calls = kCalls.find(name);
  const std::regex call("(^|[^\\w])(" + (calls == kCalls.end() ? name : calls->second) + ")\\(");
  return std::regex_search(line, call);
}

// Returns true if the model's line names `dtype`, an argument of `node`. `on_line` is the number of
// the line's operations that have that dtype: if the line calls functions that cast, it has more of
// them than it names.
bool IsCertain(const Model& model, const Node* node, at::ScalarType dtype, long on_line) {
  const std::string line = node->sourceRange().text().str();
  // TorchScript keeps x.dtype as an operation, unless it was traced, which leaves no text.
  if (model.meta.empty()) return !line.empty();
  const Words words = WordsOf(line, dtype);
  if (words.others) return false;
  if (node->kind() == kLift && !model.weights[node->input(0)->offset()].shape.empty())
    return CallsIt(line, node);
  if (words.named < on_line) return false;
  if (TakesLimit(node, dtype) ? line.find("finfo(") == std::string::npos : !CallsIt(line, node))
    return false;
  // The recording has one value for the operand and the result of a cast that changed nothing: its
  // uses may be of either. A cast that the recording omitted has no use.
  return node->kind() != c10::aten::to || RecordedDtype(model, node->input(0)) != dtype ||
         node->output()->uses().size() == 1;
}

}  // namespace

void FollowDtype(Model& model, const std::string& dtype, const std::set<at::ScalarType>& changed) {
  Value* none = nullptr;
  std::vector<std::pair<Node*, at::ScalarType>> traced;
  std::map<std::string, long> on_line;
  for (Node* node : AllNodes(*model.graph)) {
    if (node->kind() == kLift) {
      // A tensor without dimensions takes the dtype of the other operand, unless it is a limit.
      auto dtype = RecordedDtype(model, node->input(0));
      const Value* lifted = node->input(0);
      const bool weight = lifted->node() == model.graph->param_node() &&
                          lifted->offset() < model.weights.size();
      if (!weight || !changed.count(*dtype)) continue;
      const bool one = model.weights[lifted->offset()].shape.empty();
      if (one && !HoldsLimit(model, model.weights[lifted->offset()])) continue;
      traced.emplace_back(node, *dtype);
      on_line[Origin(node)] += one;
      continue;
    }
    for (at::ScalarType one : changed) {
      if (!TakesLimit(node, one)) continue;
      traced.emplace_back(node, one);
      ++on_line[Origin(node)];
    }
    const c10::FunctionSchema* schema = node->maybeSchema();
    auto index = schema ? schema->argumentIndexWithName("dtype") : std::nullopt;
    auto number = ConstantDtype(node, index);
    if (!number || !changed.count(*number)) continue;
    if (node->hasAttribute(c10::Symbol::attr("autocast"))) continue;
    if (schema->overload_name() == "dtype_layout") {  // x.to(device)
      if (!none) {
        torch::jit::WithInsertPoint start(*model.graph->nodes().begin());
        none = model.graph->insertConstant(c10::IValue());
      }
      node->replaceInput(*index, none);
      continue;
    }
    traced.emplace_back(node, *number);
    ++on_line[Origin(node)];
  }
  std::vector<std::string> unclear;
  for (auto [node, number] : traced) {
    if (IsCertain(model, node, number, on_line[Origin(node)])) continue;
    const std::string line = node->sourceRange().text().str();
    unclear.push_back(std::string(node->kind().toUnqualString()) + ", " + Origin(node) +
                      (line.empty() ? "" : ": " + line));
  }
  if (unclear.empty()) return;
  std::string list;
  const size_t shown = std::min<size_t>(unclear.size(), 5);
  for (size_t i = 0; i < shown; ++i) list += "\n    " + unclear[i];
  if (shown < unclear.size())
    list += "\n    and " + std::to_string(unclear.size() - shown) + " more";
  std::string changing;
  for (at::ScalarType one : changed) changing += (changing.empty() ? "" : " or ") + DtypeText(one);
  throw Error(model.file + ": --dtype " + dtype,
              "the model holds " + changing +
                  " or a limit of it (torch.finfo) as a constant that may be the dtype of a "
                  "tensor (x.to(y.dtype)), or it may also use the tensor from before a cast; "
                  "a recording does not tell which:" +
                  list,
              "leave --dtype out and record the model in that dtype: model.to(torch." + dtype +
                  ") and inputs of it, before torch.export.export");
}

}  // namespace pipewright
