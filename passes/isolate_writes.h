// In-place operations stay what they were when modules no longer share memory.
#pragma once
#include "passes/split.h"

namespace pipewright {

// A module that writes into a value it receives writes into a clone. Throws Error, naming both
// operations, where a cut would change the result: another module, or another received value, sees
// the memory that is written and uses it afterwards; a weight that one module writes is used by
// another. What shares memory: passes/memory.h.
void IsolateWrites(Model& model, Assignment& assignment);

}  // namespace pipewright
