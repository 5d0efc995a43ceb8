// Finds inputs of a module that are row indices of its embedding tables.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace pipewright {

struct TableUse {
  size_t input;       // the graph's input; 0 is the module itself
  std::string table;  // its name in the module
};

// Returns the inputs that an embedding takes directly, not values computed from an input.
std::vector<TableUse> TableUses(const torch::jit::Graph& graph);

}  // namespace pipewright
