// Where to cut: what `--split` says, and the module of every node.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/model.h"

namespace pipewright {

struct SplitSpec {
  enum Kind {
    kMarkers,   // where the model says pipe_split()
    kNames,     // before and after submodules; "path@2" is the third call of one called several
                // times
    kChildren,  // one module for each call of a direct child of `path` ("": the model itself)
    kEqual,     // `count` modules of about as many operations each
    kBalanced,  // `count` modules of about the same cost (passes/node_cost.h)
    kSize,      // modules whose weights take at most `bytes`
    kProfile,   // `count` modules of about the same measured time; becomes kFine first
                // (compiler/profile_split.h), AssignModules refuses it
    kFine,      // where operations of one submodule follow those of another
    kMap,       // submodule -> module
    kFunction,
  } kind = kMarkers;
  std::vector<std::string> before, after;
  std::string path;
  int count = 1;
  int64_t bytes = 0;
  int depth = 0;          // kFine: of the calls of submodules to cut between; 0: all
  std::vector<int> keep;  // kFine: of all its cuts (1, 2, ...) those to make, ascending
  bool keep_all = true;   // kFine: every cut, whatever `keep` says
  std::map<std::string, int> map;
  std::function<int(const torch::jit::Node*)> function;
  std::string text = "markers";  // as the command line said it, for messages
};

// "markers", "modules:blocks.2,blocks.4", "children:blocks", "equal:4", "balanced:4", "profile:4",
// "size:1GB", or a JSON file {"blocks.0": 0, "blocks.1": 1, ...}. `after` adds cuts after
// submodules, to none or to "modules:". With them alone, `text` is empty. Throws UsageError, Error.
SplitSpec ParseSplit(const std::string& text, const std::vector<std::string>& after = {});

// The module of every node of the graph's top level. Constants and lists belong nowhere: each
// module that uses one makes its own (passes/localize.h).
struct Assignment {
  int modules = 1;
  std::unordered_map<const torch::jit::Node*, int> module_of;
  std::vector<std::string> reasons;                // by module: why it starts where it starts
  std::vector<std::pair<int, std::string>> notes;  // (module, what a pass did there)
  std::vector<std::string> warnings;               // for people: what they may not expect
};

// Gives every node a module and removes the markers. All kinds but kMap and kFunction cut the
// order of execution into runs; those two give any convex partition, and the graph is sorted so
// that modules follow each other. equal, balanced and size cut where the fewest tensors cross.
// Throws Error: unknown submodules, cuts inside a no-gradient region, fewer operations than
// modules, a value that would flow to a module before its own.
Assignment AssignModules(Model& model, const SplitSpec& split);

}  // namespace pipewright
