// Makes a module tree from the names in a checkpoint.
#pragma once
#include "formats/weights/checkpoint.h"
#include "plan/placement/tree/module_tree.h"

namespace pipewright {

// Returns a tree in which "h.0.fc.weight" belongs to module h.0.fc. Classes are unknown, and every
// tensor is a parameter. Numeric names are sorted as numbers ("h.2" before "h.10"); otherwise the
// order is the checkpoint's. Names that share memory, and names that the file's metadata records as
// dropped, are tied.
ModuleTree TreeOfCheckpoint(const Checkpoint& checkpoint);

}  // namespace pipewright
