// Reads a tree of modules from JSON.
#pragma once
#include <string>

#include "base/json.h"
#include "plan/placement/tree/module_tree.h"

namespace pipewright {

// Reads {"": {"class": "Model", "parameters": {...}, "buffers": {...}, "children": {"fc": {...}}}}.
// A tensor is {"dtype": "F32", "shape": [4, 3]}, or {"same_as": "full.path"} for another name of
// one. Throws Error naming `path` and the place in the tree.
ModuleTree ReadModuleTree(const Json& json, const std::string& path);

}  // namespace pipewright
