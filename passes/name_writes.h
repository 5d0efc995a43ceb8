// Makes uses after an in-place operation refer to the operation's result by name, so that cuts need
// not keep the two together.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Applies to operations outside branches and loops that return what they write to (add_,
// index_put_). Weights keep their names, because a buffer that is written belongs to one module.
void NameWrites(Model& model);

}  // namespace pipewright
