#include "passes/random_operations.h"

#include <torch/csrc/jit/ir/constants.h>

#include "base/error.h"
#include "ops/draws.h"
#include "ops/random_ops.h"
#include "passes/graph/error_context.h"
#include "passes/rnn_dropout.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

// Returns the operation's id; in a loop, a different one for each iteration.
static Value* Id(Model& model, Node* before, int64_t number) {
  torch::jit::WithInsertPoint place(before);
  torch::jit::Graph& graph = *model.graph;
  Value* round = nullptr;
  for (torch::jit::Block* block = before->owningBlock(); block->owningNode();
       block = block->owningNode()->owningBlock()) {
    if (block->owningNode()->kind() != torch::jit::prim::Loop) continue;
    Value* counter = block->inputs()[0];
    if (round)
      round = graph.insert(c10::aten::mul, {round, graph.insertConstant(int64_t{1} << 12)});
    round = round ? graph.insert(c10::aten::add, {round, counter}) : counter;
  }
  Value* id = graph.insertConstant(number);
  if (!round) return id;
  Value* shifted = graph.insert(
      c10::aten::mul, {graph.insert(c10::aten::add, {round, graph.insertConstant(int64_t{1})}),
                       graph.insertConstant(int64_t{1} << 32)});
  return graph.insert(c10::aten::add, {shifted, id});
}

static Node* Replace(Model& model, Node* node, const char* symbol,
                     const std::vector<Value*>& inputs) {
  size_t count = node->outputs().size();
  Node* made = model.graph->create(c10::Symbol::fromQualString(symbol), inputs, count);
  made->insertBefore(node);
  made->copyMetadata(node);
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    Value* old = node->outputs()[i];
    names.push_back(old->hasDebugName() ? old->debugName() : "");
    made->outputs()[i]->setType(old->type());
    old->replaceAllUsesWith(made->outputs()[i]);
  }
  node->destroy();
  for (size_t i = 0; i < count; ++i)
    if (!names[i].empty()) made->outputs()[i]->setDebugName(names[i]);
  return made;
}

// Writes the result of `made` back to its first input.
static void WriteBack(Model& model, Node* made) {
  torch::jit::WithInsertPoint after(made->next());
  Value* result = made->output();
  Node* copy = model.graph->create(c10::Symbol::aten("copy_"),
                                   {made->input(0), result, model.graph->insertConstant(false)}, 1);
  model.graph->insertNode(copy);
  copy->copyMetadata(made);
  copy->output()->setType(result->type());
  result->replaceAllUsesAfterNodeWith(copy, copy->output());
}

// Replaces the operator by its overload with a generator, if PyTorch has one.
static void GiveGenerator(Model& model, Node* node, int64_t id) {
  Value* number = Id(model, node, id);
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
  SplitRnnDropout(model);
  int64_t id = 0;
  for (Node* node : AllNodes(*model.graph)) {
    const ErrorContext here(node);
    const std::string name = node->kind().toUnqualString();
    const Draws draws = DrawsOf(node);
    if (draws == Draws::kDropout) {
      std::vector<Value*> inputs = {node->input(0), node->input(1), node->input(2),
                                    Id(model, node, id++)};
      bool in_place = name.back() == '_';
      const std::string plain = in_place ? name.substr(0, name.size() - 1) : name;
      Node* made = Replace(model, node, ("pipewright::" + plain).c_str(), inputs);
      if (in_place) WriteBack(model, made);
    } else if (draws == Draws::kNativeDropout) {
      torch::jit::WithInsertPoint before(node);
      // Its flag may be None, which means true.
      Value* train = InputOf(node, "train");
      if (train->node()->kind() == torch::jit::prim::Constant) train = model.training();
      Replace(model, node, "pipewright::native_dropout",
              {node->input(0), node->input(1), train, Id(model, node, id++)});
    } else if (draws == Draws::kAttention) {
      std::vector<Value*> inputs;
      for (const char* argument :
           {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"})
        inputs.push_back(InputOf(node, argument));
      inputs.push_back(model.training());
      inputs.push_back(Id(model, node, id++));
      Replace(model, node, "pipewright::scaled_dot_product_attention", inputs);
    } else if (draws == Draws::kHopeless) {
      throw Error(model.file + ": " + name + ", " + Origin(node),
                  "draws random numbers in a way that cannot be repeated on every rank",
                  "use torch.nn.Dropout, or set its probability to 0");
    } else if (draws == Draws::kGenerator) {
      GiveGenerator(model, node, id++);
    }
  }
}

}  // namespace pipewright
