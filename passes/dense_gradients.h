// Makes the gradients of embeddings dense.
#pragma once
#include <string>
#include <vector>

#include "passes/graph/model.h"

namespace pipewright {

// Arguments `sparse` of embeddings that the model sets (nn.Embedding(sparse=True)) become false:
// gradients are added over microbatches and reduced over ranks as dense tensors. Appends a note for
// each such operation.
void MakeGradientsDense(Model& model, std::vector<std::string>* notes);

}  // namespace pipewright
