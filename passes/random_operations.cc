#include "passes/random_operations.h"

#include <torch/csrc/jit/ir/constants.h>

#include <set>

#include "passes/random_ops.h"
#include "plan/error.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

static Value* Number(Model& model, Node* before, int64_t number) {
  torch::jit::WithInsertPoint place(before);
  return model.graph->insertConstant(number);
}

static void Replace(Model& model, Node* node, const char* symbol,
                    const std::vector<Value*>& inputs) {
  Node* made = model.graph->create(c10::Symbol::fromQualString(symbol), inputs, 1);
  made->insertBefore(node);
  made->copyMetadata(node);
  const std::string name = node->output()->hasDebugName() ? node->output()->debugName() : "";
  made->output()->setType(node->output()->type());
  node->output()->replaceAllUsesWith(made->output());
  node->destroy();
  if (!name.empty()) made->output()->setDebugName(name);
}

static Value* Input(Node* node, const char* name) {
  auto index = node->schema().argumentIndexWithName(name);
  return index ? node->inputs()[*index] : nullptr;
}

// The operators' in-place forms draw alike; rand_like and the rest have overloads with a generator.
static const std::set<std::string> kDraws = {
    "rand",         "randn",           "randint",
    "randperm",     "rand_like",       "randn_like",
    "randint_like", "bernoulli",       "bernoulli_",
    "uniform_",     "normal_",         "normal",
    "exponential_", "random_",         "multinomial",
    "poisson",      "geometric_",      "log_normal_",
    "cauchy_",      "binomial",        "rrelu_with_noise",
    "uniform",      "_standard_gamma", "_sample_dirichlet"};
static const std::set<std::string> kDropouts = {"alpha_dropout",
                                                "feature_dropout",
                                                "feature_alpha_dropout",
                                                "native_dropout",
                                                "dropout_",
                                                "alpha_dropout_",
                                                "feature_dropout_",
                                                "feature_alpha_dropout_",
                                                "rrelu",
                                                "rrelu_",
                                                "_scaled_dot_product_flash_attention_for_cpu"};

static bool DrawsNothing(Node* node) {
  Value* p = Input(node, "p");
  if (p && torch::jit::constant_as<double>(p) == 0.0) return true;
  Value* train = Input(node, "train");
  return train && torch::jit::constant_as<bool>(train) == false;
}

// The same operator with a generator, where PyTorch has it.
static void GiveGenerator(Model& model, Node* node, int64_t id) {
  Value* number = Number(model, node, id);
  Node* generator = model.graph->create(c10::Symbol::fromQualString("pipewright::generator"),
                                        {model.device(), number}, 1);
  generator->insertBefore(node);
  generator->output()->setType(c10::OptionalType::create(c10::GeneratorType::get()));
  generator->copyMetadata(node);
  const c10::FunctionSchema& schema = node->schema();
  auto index = schema.argumentIndexWithName("generator");
  if (index) {
    node->replaceInput(*index, generator->output());
    return;
  }
  std::vector<torch::jit::NamedValue> positional, keyword;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.kwarg_only())
      keyword.emplace_back(argument.name(), node->inputs()[i]);
    else
      positional.emplace_back(node->inputs()[i]);
  }
  keyword.emplace_back("generator", generator->output());
  Value* out = nullptr;
  try {
    torch::jit::WithInsertPoint before(node);
    out = model.graph->insert(node->kind(), positional, keyword);
  } catch (const std::exception&) {
    throw Error(
        model.file + ": " + node->kind().toUnqualString() + std::string(", ") + Origin(node),
        "draws random numbers in a way that cannot be repeated on every rank",
        "use dropout, rand, randn or bernoulli, or pass the numbers as an input");
  }
  out->node()->copyMetadata(node);
  const std::string name = node->output()->hasDebugName() ? node->output()->debugName() : "";
  node->output()->replaceAllUsesWith(out);
  node->destroy();
  if (!name.empty()) out->setDebugName(name);
}

void RewriteRandomOperations(Model& model) {
  CurrentRandomKey();  // registers the operators
  int64_t id = 0;
  for (auto it = model.graph->nodes().begin(); it != model.graph->nodes().end();) {
    Node* node = *it++;
    if (!node->kind().is_aten() || !node->maybeSchema()) continue;
    const std::string name = node->kind().toUnqualString();
    if (name == "dropout" || name == "dropout_") {
      if (DrawsNothing(node)) continue;
      std::vector<Value*> inputs = {node->input(0), node->input(1), node->input(2),
                                    Number(model, node, id++)};
      Replace(model, node, "pipewright::dropout", inputs);
    } else if (name == "scaled_dot_product_attention") {
      if (torch::jit::constant_as<double>(Input(node, "dropout_p")) == 0.0) continue;
      std::vector<Value*> inputs;
      for (const char* argument :
           {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"})
        inputs.push_back(Input(node, argument));
      inputs.push_back(model.training());
      inputs.push_back(Number(model, node, id++));
      Replace(model, node, "pipewright::scaled_dot_product_attention", inputs);
    } else if (kDropouts.count(name)) {
      if (DrawsNothing(node)) continue;
      throw Error(model.file + ": " + name + ", " + Origin(node),
                  "draws random numbers in a way that cannot be repeated on every rank",
                  "use torch.nn.Dropout, or set its probability to 0");
    } else if (kDraws.count(name)) {
      GiveGenerator(model, node, id++);
    } else if ((name == "lstm" || name == "gru" || name == "rnn_tanh" || name == "rnn_relu") &&
               torch::jit::constant_as<double>(Input(node, "dropout")).value_or(1) > 0) {
      throw Error(model.file + ": " + name + ", " + Origin(node),
                  "has dropout between its layers, which cannot be repeated on every rank",
                  "set dropout=0 and put torch.nn.Dropout between single-layer RNNs");
    }
  }
}

}  // namespace pipewright
