// A module cut into the parts that its code names, to be measured one by one.
#pragma once
#include <string>
#include <vector>

#include "runtime/module.h"

namespace pipewright {

// Values inside a module: its inputs come first, by position.
struct ModulePart {
  std::string label;         // the submodule, or the line of the model, that its comment names
  LoadedModule module;       // runs the part; holds the weights that the part uses
  std::vector<size_t> held;  // those weights, by position in the whole module
  std::vector<int> inputs, outputs;  // values, in the order in which the part takes and gives them
};

struct ModuleParts {
  std::vector<ModulePart> parts;  // in order; one at most where nothing can be cut
  int values = 0;
  std::vector<int> outputs;  // the module's, as values
};

// A part is a run of operations under comments that name one submodule. Cuts that would change what
// is computed are left out: where lists travel, where memory made before is written to behind, or
// where gradients are switched off. A weight that several parts use is held by each of them.
ModuleParts CutIntoParts(const LoadedModule& module, const ModuleInfo& info);

}  // namespace pipewright
