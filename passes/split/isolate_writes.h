// Preserves the meaning of in-place operations when modules no longer share memory.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

// A module that writes to a value it receives writes to a clone instead. Throws Error, naming both
// operations, if a cut would change the result: if another module, or another received value, sees
// the written memory and uses it later, or if a weight that one module writes is used by another.
// passes/graph/memory.h defines which values share memory.
void IsolateWrites(Model& model, ModuleAssignment& assignment);

}  // namespace pipewright
