// Finds inputs of a module that are numbers of rows of its tables (embeddings).
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace pipewright {

struct TableUse {
  size_t input;       // of the graph; 0 is the module itself
  std::string table;  // its name in the module
};

// Those that an embedding takes as they come: not what is computed from an input.
std::vector<TableUse> TableUses(const torch::jit::Graph& graph);

}  // namespace pipewright
