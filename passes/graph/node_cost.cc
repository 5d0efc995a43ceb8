#include "passes/graph/node_cost.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/symbol.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

// Assumes a processor that does 10 operations in the time it takes to move one byte.
constexpr double kFlopsPerByte = 10;

std::map<std::string, int64_t> AssumedSizes(const Model& model) {
  std::map<std::string, int64_t> sizes;
  for (const auto& [symbol, range] : model.symbols)
    sizes[symbol] = std::clamp(kAssumedSize, range.first, range.second);
  return sizes;
}

std::vector<double> Shape(const Model& model, const Value* value) {
  std::vector<double> shape;
  if (value->node() == model.graph->param_node() && value->offset() < model.weights.size()) {
    for (int64_t size : model.weights[value->offset()].shape)
      shape.push_back(static_cast<double>(size));
    return shape;
  }
  const ValueMeta* meta = model.MetaOf(value);
  if (!meta) return shape;
  const auto sizes = AssumedSizes(model);
  for (const std::string& size : meta->shape) {
    try {
      shape.push_back(static_cast<double>(EvaluateSize(size, sizes)));
    } catch (const Error&) {
      shape.push_back(kAssumedSize);
    }
  }
  return shape;
}

double Product(const std::vector<double>& shape) {
  double product = 1;
  for (double size : shape) product *= size;
  return product;
}

bool Known(const Model& model, const Value* value) {
  return model.MetaOf(value) ||
         (value->node() == model.graph->param_node() && value->offset() < model.weights.size());
}

double Last(const std::vector<double>& shape, size_t back) {
  return shape.size() >= back ? shape[shape.size() - back] : 1;
}

}  // namespace

double Elements(const Model& model, const Value* value) {
  if (value->type()->kind() != c10::TypeKind::TensorType) return 1;
  return Known(model, value) ? Product(Shape(model, value)) : 0;
}

double AssumedBytes(const Model& model, const Value* value) {
  const ValueMeta* meta = model.MetaOf(value);
  return Elements(model, value) * (meta ? static_cast<double>(c10::elementSize(meta->dtype)) : 4);
}

double NodeCost::Total() const { return flops + kFlopsPerByte * bytes; }

NodeCost CostOf(const Model& model, const Node* node) {
  static const std::set<std::string> kViews = {
      "view",   "reshape",    "transpose", "permute",   "t",       "expand",
      "slice",  "select",     "size",      "unsqueeze", "squeeze", "flatten",
      "detach", "alias",      "unflatten", "chunk",     "split",   "unbind",
      "numel",  "as_strided", "movedim",   "expand_as", "view_as"};
  NodeCost cost;
  const std::string name = node->kind().toUnqualString();
  if (node->kind().is_prim() || kViews.count(name)) return cost;
  for (const Value* input : node->inputs()) cost.bytes += AssumedBytes(model, input);
  for (const Value* output : node->outputs()) cost.bytes += AssumedBytes(model, output);
  if (node->outputs().empty() || node->inputs().size() < 2) return cost;
  auto shape = [&](size_t input) { return Shape(model, node->inputs()[input]); };
  // Returns the number of rows of the input, or kAssumedSize if its shape is not recorded.
  auto rows = [&](size_t input) {
    if (!Known(model, node->inputs()[input])) return static_cast<double>(kAssumedSize);
    std::vector<double> sizes = shape(input);
    return Product(sizes) / std::max(1.0, Last(sizes, 1));
  };
  if (name == "linear" || name == "mm" || name == "matmul" || name == "bmm") {
    std::vector<double> other = shape(1);
    double width = name == "linear" ? Product(other) : Last(other, 2) * Last(other, 1);
    cost.flops = 2 * rows(0) * width;
  } else if (name == "grouped_mm_fallback" || name == "_grouped_mm") {  // one expert per row
    std::vector<double> other = shape(1);
    cost.flops = 2 * rows(0) * Last(other, 2) * Last(other, 1);
  } else if (name == "addmm" || name == "baddbmm") {
    std::vector<double> other = shape(2);
    cost.flops = 2 * rows(1) * Last(other, 2) * Last(other, 1);
  } else if (name.rfind("conv", 0) == 0 || name == "_convolution" || name == "convolution") {
    std::vector<double> weight = shape(1);
    double out = Elements(model, node->outputs()[0]);
    double per_output = weight.empty() ? 1 : Product(weight) / std::max(1.0, weight[0]);
    cost.flops = 2 * (out > 0 ? out : kAssumedSize * (weight.empty() ? 1 : weight[0])) * per_output;
  } else if (name == "scaled_dot_product_attention") {
    std::vector<double> query = shape(0), key = shape(1);
    cost.flops = 4 * Product(query) * Last(key, 2);
  } else if (name == "lstm" || name == "gru" || name == "rnn_tanh" || name == "rnn_relu") {
    double weights = 0;
    for (const Value* input : node->inputs())
      if (input->node()->kind() == torch::jit::prim::ListConstruct)
        for (const Value* weight : input->node()->inputs()) weights += Elements(model, weight);
    cost.flops = 2 * rows(0) * weights;
  }
  return cost;
}

}  // namespace pipewright
