// The modules of torch.nn.
#pragma once
#include <string>
#include <vector>

#include "formats/module_repr.h"

namespace pipewright {

// The module of torch.nn that is printed by this name: Linear of Linear, torch.nn.Linear and
// torch.nn.modules.linear.Linear. "" where none is.
std::string TorchName(const std::string& printed);
std::vector<std::string> TorchModules();

// The arguments for the constructor of this module of torch.nn: without those that are printed
// only. Throws Error at one that the constructor does not take.
std::vector<ModuleRepr::Argument> ConstructorArguments(const ModuleRepr& module,
                                                       const Description& description);

}  // namespace pipewright
