#include "passes/dense_gradients.h"

#include <torch/csrc/jit/ir/constants.h>

#include "passes/graph/error_context.h"

namespace pipewright {

using torch::jit::Node;

void MakeGradientsDense(Model& model, std::vector<std::string>* notes) {
  for (Node* node : AllNodes(*model.graph)) {
    const ErrorContext here(node);
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (!schema) continue;
    auto index = schema->argumentIndexWithName("sparse");
    if (!index) index = schema->argumentIndexWithName("sparse_grad");
    // A flag that is computed may be set.
    if (!index || !torch::jit::constant_as<bool>(node->inputs()[*index]).value_or(true)) continue;
    torch::jit::WithInsertPoint before(node);
    node->replaceInput(*index, model.graph->insertConstant(false));
    if (notes)
      notes->push_back(std::string(node->kind().toQualString()) + ", " + Origin(node) +
                       ": has a dense gradient here (sparse=True in the model): the optimizer "
                       "updates every row of the weight");
  }
}

}  // namespace pipewright
