// Lists the modules of torch.nn and the arguments of their constructors.
#pragma once
#include <string>
#include <vector>

#include "formats/module_repr.h"

namespace pipewright {

// Returns the module of torch.nn that is printed with this name: "Linear" for Linear,
// torch.nn.Linear and torch.nn.modules.linear.Linear. "" if there is none.
std::string TorchName(const std::string& printed);
std::vector<std::string> TorchModules();

// Returns the constructor's arguments for this module of torch.nn, without those that are only
// printed. Throws Error naming the position of one that the constructor does not take.
std::vector<ModuleRepr::Argument> ConstructorArguments(const ModuleRepr& module,
                                                       const Description& description);

}  // namespace pipewright
