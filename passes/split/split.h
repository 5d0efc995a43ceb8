// Decides where to cut: parses `--split` and assigns a module to every node.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/graph/model.h"

namespace pipewright {

struct SplitSpec {
  enum Kind {
    kMarkers,   // at the model's pipe_split()
    kNames,     // before and after submodules; "path@2" is the third call of one called repeatedly
    kChildren,  // one module per call of a direct child of `path` ("": the model itself)
    kEqual,     // `count` modules with about equally many operations
    kBalanced,  // `count` modules of about equal cost (passes/graph/node_cost.h)
    kSize,      // modules whose weights take at most `bytes`
    kProfile,   // `count` modules of about equal measured time; is first turned into kFine
                // (compiler/measured/profile_split.h), AssignModules rejects it
    kFine,      // before operations of another submodule
    kMap,       // submodule -> module
    kFunction,
  } kind = kMarkers;
  std::vector<std::string> before, after;
  std::string path;
  int count = 1;
  int64_t bytes = 0;
  int depth = 0;          // kFine: depth of the submodule calls to cut between; 0: all
  std::vector<int> keep;  // kFine: numbers (1, 2, ...) of the cuts to make, ascending
  bool keep_all = true;   // kFine: make every cut, regardless of `keep`
  std::map<std::string, int> map;
  std::function<int(const torch::jit::Node*)> function;
  std::string text = "markers";  // from the command line, for messages
};

// Parses "markers", "modules:blocks.2,blocks.4", "children:blocks", "equal:4", "balanced:4",
// "profile:4", "size:1GB", or a JSON file {"blocks.0": 0, "blocks.1": 1, ...}. `after` adds cuts
// after submodules, to none or to "modules:"; `text` is empty if there are only those. Throws
// UsageError, Error.
SplitSpec ParseSplit(const std::string& text, const std::vector<std::string>& after = {});

// The module of every top-level node of the graph. Constants and lists have none: each module that
// uses one makes its own (passes/split/localize.h).
struct ModuleAssignment {
  int modules = 1;
  std::unordered_map<const torch::jit::Node*, int> module_of;
  std::vector<std::string> reasons;                // by module: why it starts there
  std::vector<std::pair<int, std::string>> notes;  // (module, change that a pass made there)
  std::vector<std::string> warnings;               // for the user: surprising facts
};

// Assigns every node to a module and removes the markers. All kinds but kMap and kFunction cut the
// order of execution into runs; those two allow any convex partition, and the graph is sorted so
// that modules follow each other. equal, balanced and size cut where the fewest tensors cross.
// Throws Error for unknown submodules, cuts inside a no-gradient region, fewer operations than
// modules, and a value that would flow to an earlier module.
ModuleAssignment AssignModules(Model& model, const SplitSpec& split);

}  // namespace pipewright
