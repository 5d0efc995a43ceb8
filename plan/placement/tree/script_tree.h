// Reads the module tree of a TorchScript archive (.pt of torch.jit.save) without torch.
#pragma once
#include <string>
#include <string_view>

#include "plan/placement/tree/module_tree.h"

namespace pipewright {

// Returns true if a file's bytes are such an archive.
bool IsScript(std::string_view file);

// Returns all modules with their classes, parameters and buffers (the archive does not record which
// of these are persistent). Names of the same view of the same storage are tied. Reads only the
// archive's descriptions and executes nothing. Throws Error naming `path`.
ModuleTree TreeOfScript(std::string_view file, const std::string& path);

}  // namespace pipewright
