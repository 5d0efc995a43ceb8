// Finds parameters that the forward of a module writes to in place, as constraints on weights do.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

struct WrittenParameter {
  std::string name;
  const torch::jit::Node* node;  // the node that writes
  bool unseen;                   // through .data: autograd does not see it
};

// Returns one for each write, in their order.
std::vector<WrittenParameter> WrittenParameters(torch::jit::Graph& graph,
                                                const ModuleInfo& info);

}  // namespace pipewright
