// Makes a module tree from the names in a checkpoint.
#pragma once
#include "formats/weights/checkpoint.h"
#include "plan/placement/module_tree.h"

namespace pipewright {

// "h.0.fc.weight" lies in module h.0.fc. Classes are unknown; every tensor is a parameter; numbers
// among the names count as numbers ("h.2" before "h.10"), otherwise the order is the checkpoint's.
// Names that share memory, and names that the file's metadata records as dropped, are tied.
ModuleTree TreeOfCheckpoint(const Checkpoint& checkpoint);

}  // namespace pipewright
