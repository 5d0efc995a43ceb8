// Makes the gradients of embeddings dense.
#pragma once
#include <string>
#include <vector>

#include "passes/graph/model.h"

namespace pipewright {

// Sets the `sparse` argument of embeddings (nn.Embedding(sparse=True)) to false: gradients are
// added over microbatches and reduced over ranks as dense tensors. Appends a note for each such
// operation.
void MakeGradientsDense(Model& model, std::vector<std::string>* notes);

}  // namespace pipewright
