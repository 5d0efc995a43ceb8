// What is used after an in-place operation on it is the operation's result by name, too: cuts then
// need not keep the two together.
#pragma once
#include "passes/model.h"

namespace pipewright {

// Of operations outside branches and loops that return what they write to (add_, index_put_).
// Weights keep their names: a buffer that is written belongs to one module.
void NameWrites(Model& model);

}  // namespace pipewright
