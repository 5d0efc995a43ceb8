// Cuts a module into the parts that its code names, to measure them separately.
#pragma once
#include <string>
#include <vector>

#include "runtime/module/module.h"

namespace pipewright {

// Values inside a module are numbered by position; its inputs come first.
struct ModulePart {
  std::string label;                 // the submodule, or the line of the model, from its comment
  LoadedModule module;               // runs the part; holds only the weights that the part uses
  std::vector<size_t> held;          // the part's weights, as indices in the whole module
  std::vector<int> inputs, outputs;  // values, in the order of the part's arguments and results
};

struct ModuleParts {
  std::vector<ModulePart> parts;  // in order; at most one if nothing can be cut
  int values = 0;
  std::vector<int> outputs;  // the module's outputs, as values
};

// A part is a run of operations whose comments name one submodule. No cut is made where it would
// change the result: where lists cross it, where memory created before it is written to after it,
// or where gradients are disabled. A weight that several parts use is held by each of them.
ModuleParts CutIntoParts(const LoadedModule& module, const ModuleInfo& info);

}  // namespace pipewright
