#include "ops/draws.h"

#include <torch/csrc/jit/ir/constants.h>

#include <set>

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

// Operators that draw, and take a generator in another overload than the one that exports record.
static const std::set<std::string> kDraws = {"rand",      "randn",      "randint",     "randperm",
                                             "rand_like", "randn_like", "randint_like"};
// Operators that this program replaces; the replacement writes the result of in-place forms back.
static const std::set<std::string> kDropouts = {
    "dropout",  "feature_dropout",  "alpha_dropout",  "feature_alpha_dropout",
    "dropout_", "feature_dropout_", "alpha_dropout_", "feature_alpha_dropout_"};
// Operators with dropout between their layers.
static const std::set<std::string> kRnns = {"lstm", "gru", "rnn_tanh", "rnn_relu"};
// Into which decompositions turn scaled_dot_product_attention.
static const std::set<std::string> kAttentions = {
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable"};

static const Value* Argument(const Node* node, const char* name) {
  const auto index = node->schema().argumentIndexWithName(name);
  return index ? node->input(*index) : nullptr;
}

static bool DrawsNothing(const Node* node) {
  const Value* layers = Argument(node, "num_layers");
  if (layers && torch::jit::constant_as<int64_t>(layers) == 1) return true;
  const Value* p = Argument(node, layers ? "dropout" : "p");
  if (p && torch::jit::constant_as<double>(p) == 0.0) return true;
  const Value* train = Argument(node, "train");
  return train && torch::jit::constant_as<bool>(train) == false;
}

Draws DrawsOf(const Node* node) {
  if (!node->kind().is_aten() || !node->maybeSchema()) return Draws::kNothing;
  const std::string name = node->kind().toUnqualString();
  if (kDropouts.count(name)) return DrawsNothing(node) ? Draws::kNothing : Draws::kDropout;
  if (kRnns.count(name)) return DrawsNothing(node) ? Draws::kNothing : Draws::kRnn;
  if (name == "native_dropout")
    return DrawsNothing(node) ? Draws::kNothing : Draws::kNativeDropout;
  if (name == "scaled_dot_product_attention")
    return torch::jit::constant_as<double>(Argument(node, "dropout_p")) == 0.0 ? Draws::kNothing
                                                                               : Draws::kAttention;
  if (name == "_fused_dropout") return Draws::kHopeless;
  if (kAttentions.count(name))
    return torch::jit::constant_as<double>(Argument(node, "dropout_p")) == 0.0 ? Draws::kNothing
                                                                               : Draws::kHopeless;
  const bool takes = node->schema().argumentIndexWithName("generator").has_value();
  return takes || kDraws.count(name) ? Draws::kGenerator : Draws::kNothing;
}

std::string RepeatableForm(const Node* node) {
  const std::string name = node->kind().toUnqualString();
  const std::string number = ", with another number than 1000 for each operation of the model";
  switch (DrawsOf(node)) {
    case Draws::kNothing:
      return "";
    case Draws::kDropout:
    case Draws::kNativeDropout:
      return "write ops.pipewright." + name.substr(0, name.find_last_not_of('_') + 1) +
             "(x, p, self.training, 1000)" + number;
    case Draws::kGenerator:
      if (const Value* generator = Argument(node, "generator");
          generator && !generator->mustBeNone())
        return "";
      return "give it generator=ops.pipewright.generator(self.device, 1000)" + number;
    case Draws::kAttention:
      return "write ops.pipewright.scaled_dot_product_attention(query, key, value, mask, p, "
             "is_causal, scale, enable_gqa, self.training, 1000)" +
             number;
    case Draws::kRnn:
      return "call it for one layer at a time, with dropout 0, and between the layers "
             "ops.pipewright.dropout(x, p, self.training, 1000)" +
             number;
    case Draws::kHopeless:
      break;
  }
  return "use ops.pipewright.dropout(x, p, self.training, 1000)" + number;
}

}  // namespace pipewright
