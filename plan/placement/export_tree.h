// The module tree of a model file of torch.export (.pt2), read without torch.
#pragma once
#include <string>
#include <string_view>

#include "plan/placement/module_tree.h"

namespace pipewright {

// Returns whether a file's bytes are such an archive.
bool IsExport(std::string_view file);

// All modules of the source model; classes of those whose operations were recorded, "" for the
// others; parameters, and buffers whether persistent or not. Weights that share a record and a
// shape are tied. Only the archive's descriptions are read. Throws Error naming `path`.
ModuleTree TreeOfExport(std::string_view file, const std::string& path);

}  // namespace pipewright
