// Where to cut: the text of `--split`, and the module of every node.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/model.h"

namespace pipewright {

struct SplitSpec {
  enum Kind { kMarkers, kEqual, kModules } kind = kMarkers;
  int count = 1;                   // kEqual
  std::vector<std::string> names;  // kModules: cut before these submodules; "path@2" is the third
                                   // call of a submodule called several times
};

// "markers", "equal:4", "modules:blocks.2,blocks.4". Throws UsageError.
SplitSpec ParseSplit(const std::string& text);

// The module of every node of the graph's top level. Constants and lists belong nowhere: each
// module that uses one makes its own (passes/localize.h).
struct Assignment {
  int modules = 1;
  std::unordered_map<const torch::jit::Node*, int> module_of;
};

// Cuts the graph, which is in the order of execution, into runs of nodes, and removes the markers.
// equal:N cuts where about as many operations lie on either side and the fewest values cross.
// Throws Error: unknown submodules, cuts inside a no-gradient region, fewer operations than
// modules.
Assignment AssignModules(Model& model, const SplitSpec& split);

}  // namespace pipewright
