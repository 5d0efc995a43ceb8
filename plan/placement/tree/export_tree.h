// Reads the module tree of a model file of torch.export (.pt2) without torch.
#pragma once
#include <string>
#include <string_view>

#include "plan/placement/tree/module_tree.h"

namespace pipewright {

// Returns true if a file's bytes are such an archive.
bool IsExport(std::string_view file);

// Returns all modules of the source model, with their class ("" if their operations were not
// recorded), parameters, and buffers, both persistent and not. Weights that share a record and a
// shape are tied. Reads only the archive's descriptions. Throws Error naming `path`.
ModuleTree TreeOfExport(std::string_view file, const std::string& path);

}  // namespace pipewright
