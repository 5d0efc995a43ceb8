// The module tree of a TorchScript archive (.pt of torch.jit.save), read without torch.
#pragma once
#include <string>
#include <string_view>

#include "plan/placement/module_tree.h"

namespace pipewright {

// Returns whether a file's bytes are such an archive.
bool IsScript(std::string_view file);

// All modules with their classes, parameters and buffers (which of them are persistent is not
// recorded). Names that are one view of one storage are tied. Only the archive's descriptions are
// read, and nothing is executed. Throws Error naming `path`.
ModuleTree TreeOfScript(std::string_view file, const std::string& path);

}  // namespace pipewright
