// Finds weights that the forward of a module writes to in place: constrained parameters, buffers.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

struct WrittenWeight {
  std::string name;
  const torch::jit::Node* node;  // the node that writes
  bool unseen;                   // through .data: autograd does not see it
};

// Returns one for each write to a weight of this kind, in their order.
std::vector<WrittenWeight> WrittenWeights(torch::jit::Graph& graph, const ModuleInfo& info,
                                          WeightKind kind);

// Returns true if the graph adds to the weight and reads it nowhere.
bool IsCount(torch::jit::Graph& graph, const std::string& weight);

}  // namespace pipewright
