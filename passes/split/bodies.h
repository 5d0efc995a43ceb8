// Collects the modules in their final form, with the inputs and outputs of each.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

struct ModuleBody {
  std::vector<torch::jit::Node*> nodes;                 // in order
  std::vector<torch::jit::Value*> inputs;               // in order of first use
  std::vector<torch::jit::Value*> outputs;              // in order of creation
  std::vector<std::pair<size_t, std::string>> weights;  // index into Model::weights and the name in
                                                        // this module; in order of first use
  bool uses_device = false;
  int assigned = 0;                 // its number in the assignment, which also counts dropped ones
  std::vector<std::string> covers;  // outermost submodules that lie entirely here
  std::string reason;               // why it starts here
  std::vector<std::string> notes;   // changes made by the passes
};

// Returns the first operation that uses `value`, for messages, such as `, aten::linear, submodule
// "fc", model.py:31`, or "" if there is none.
std::string UserText(const ModuleBody& body, const torch::jit::Value* value);

// Collects the bodies of a graph after Localize. Leaves out modules whose results are unused and
// that change no buffer. In each module, a weight with several names has the one that belongs to
// the submodule that uses it, or else the first. Unused parameters and persistent buffers are held
// by the module that holds their neighbors, so that the state dict stays complete.
std::vector<ModuleBody> CollectBodies(const Model& model, const ModuleAssignment& assignment);

}  // namespace pipewright
