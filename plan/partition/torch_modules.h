// What torch.nn has.
#pragma once
#include <string>
#include <vector>

#include "plan/partition/module_repr.h"

namespace pipewright {

bool IsTorchModule(const std::string& name);
std::vector<std::string> TorchModules();

// Whether the constructor of this module of torch.nn takes the arguments. Throws Error at the one
// that it does not.
void CheckArguments(const ModuleRepr& module, const Description& description);

}  // namespace pipewright
